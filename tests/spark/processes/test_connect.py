"""A session of a real Spark Connect server is refused, before anything is done with it."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_a_real_client_is_refused_and_goes_on(tmp_path: Path) -> None:
    program = Path(__file__).with_name("connect_client.py")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS")
    }
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    ended = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]

    answers = json.loads((tmp_path / "answers.json").read_text())

    assert answers["session"] == "pyspark.sql.connect.session"
    for call in ("run_batch", "start", "realtime"):
        assert "Spark Connect" in answers[call]
        assert "in place of .remote(...)" in answers[call]
    assert not answers["checkpoint"]
    assert answers["rows"] == 1
