"""Fetches the jars of the servers that the tests start: Kafka into .kafka/, S3Proxy into .s3/.

    python scripts/jars.py

It does nothing for jars that are there (about 100 MB in all). requirements/kafka-broker.txt and
requirements/s3-server.txt say which, with their checksums. MAVEN_REPOSITORY names a mirror of Maven
Central.
"""

import hashlib
import os
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVERS = {"kafka-broker.txt": ROOT / ".kafka", "s3-server.txt": ROOT / ".s3"}
REPOSITORY = os.environ.get("MAVEN_REPOSITORY", "https://repo1.maven.org/maven2").rstrip("/")


def main() -> None:
    for name, folder in SERVERS.items():
        lines = (ROOT / "requirements" / name).read_text().splitlines()
        wanted = [line.split() for line in lines if line and not line.startswith("#")]
        jars = [(digest, path, folder / Path(path).name) for digest, path in wanted]
        missing = [jar for jar in jars if not jar[2].exists()]
        if not missing:
            continue
        print(f"setup: fetching {len(missing)} jars of {Path(name).stem} for the tests")
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
    main()
