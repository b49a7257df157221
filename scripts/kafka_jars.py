"""Fetches the jars of the Kafka broker that the tests start, into .kafka/ (about 45 MB).

    python scripts/kafka_jars.py

It does nothing for jars that are there. requirements/kafka-broker.txt says which, with their
checksums. MAVEN_REPOSITORY names a mirror of Maven Central.
"""

import hashlib
import os
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JARS = ROOT / ".kafka"
REPOSITORY = os.environ.get("MAVEN_REPOSITORY", "https://repo1.maven.org/maven2").rstrip("/")


def main() -> None:
    lines = (ROOT / "requirements" / "kafka-broker.txt").read_text().splitlines()
    wanted = [line.split() for line in lines if line and not line.startswith("#")]
    missing = [(digest, path) for digest, path in wanted if not (JARS / Path(path).name).exists()]
    if not missing:
        return
    print(f"setup: fetching {len(missing)} jars of the Kafka broker for the tests")
    JARS.mkdir(exist_ok=True)
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(fetch, missing):
            pass


def fetch(wanted: tuple[str, str]) -> None:
    digest, path = wanted
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
    scratch = JARS / f"{Path(path).name}.{os.getpid()}"
    scratch.write_bytes(data)
    scratch.rename(JARS / Path(path).name)


if __name__ == "__main__":
    main()
