"""Fetches jars: of the servers that the tests start, into .kafka/ and .s3/; Flink's, into .flink/.

    python scripts/jars.py           for the tests
    python scripts/jars.py .flink    for a benchmark

It does nothing for jars that are there (100 MB of the servers). requirements/ says which, with
their checksums: kafka-broker.txt, s3-server.txt, flink-jars.txt. MAVEN_REPOSITORY names a mirror of
Maven Central.
"""

import hashlib
import os
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LISTS = {".kafka": "kafka-broker.txt", ".s3": "s3-server.txt", ".flink": "flink-jars.txt"}
REPOSITORY = os.environ.get("MAVEN_REPOSITORY", "https://repo1.maven.org/maven2").rstrip("/")


def main(names: list[str]) -> None:
    for name in names:
        folder = ROOT / name
        lines = (ROOT / "requirements" / LISTS[name]).read_text().splitlines()
        wanted = [line.split() for line in lines if line and not line.startswith("#")]
        jars = [(digest, path, folder / Path(path).name) for digest, path in wanted]
        missing = [jar for jar in jars if not jar[2].exists()]
        if not missing:
            continue
        print(f"setup: fetching {len(missing)} jars into {name}")
        folder.mkdir(exist_ok=True)
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(fetch, missing):
                pass


def fetch(wanted: tuple[str, str, Path]) -> None:
    digest, path, jar = wanted
    url = f"{REPOSITORY}/{path}"
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            data = answer.read()
    except OSError as error:
        sys.exit(f"setup: {url}: {error}. MAVEN_REPOSITORY may name a mirror of Maven Central.")
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        sys.exit(f"setup: {url} has SHA-256 {found}, expected {digest}.")
    # Under its name only when it is whole: what is there is not looked at again.
    scratch = jar.with_name(f"{jar.name}.{os.getpid()}")
    scratch.write_bytes(data)
    scratch.rename(jar)


if __name__ == "__main__":
    main(sys.argv[1:] or [".kafka", ".s3"])
