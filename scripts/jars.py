"""Fetches jars: Kafka's broker, Spark's Kafka connector, and S3Proxy for the tests; Flink's.

    python scripts/jars.py           for the tests, into .kafka/, .spark-kafka/ and .s3/
    python scripts/jars.py .yarn     for `make test-yarn`
    python scripts/jars.py .flink    for a benchmark

It does nothing for jars that are there (100 MB for the tests). requirements/ says which, with their
checksums: kafka-broker.txt, spark-kafka.txt, s3-server.txt, yarn.txt, flink-jars.txt. Ivy fetches
them, which comes with PySpark, from where it looks by default, Maven Central; MAVEN_REPOSITORY
names a mirror.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.sax.saxutils import quoteattr

ROOT = Path(__file__).resolve().parents[1]
LISTS = {
    ".kafka": "kafka-broker.txt",
    ".spark-kafka": "spark-kafka.txt",
    ".s3": "s3-server.txt",
    ".yarn": "yarn.txt",
    ".flink": "flink-jars.txt",
}


def main(names: list[str]) -> None:
    with ThreadPoolExecutor() as pool:
        for problem in pool.map(fetch, names):
            if problem:
                sys.exit(f"setup: {problem}")


def fetch(name: str) -> str | None:
    """Fetch what a folder lacks; return what went wrong."""
    folder = ROOT / name
    lines = (ROOT / "requirements" / LISTS[name]).read_text().splitlines()
    pairs = [line.split() for line in lines if line and not line.startswith("#")]
    missing = {path: digest for digest, path in pairs if not (folder / Path(path).name).exists()}
    if not missing:
        return None
    # Not to stdout, where kafka_broker.py says its port.
    print(f"setup: fetching {len(missing)} jars into {name}", file=sys.stderr, flush=True)
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as scratch:
        ivy = retrieve(Path(scratch), list(missing))
        for path, digest in missing.items():
            jar = Path(scratch, "jars", Path(path).name)
            if not jar.exists():
                said = [line for line in ivy.stdout.splitlines() if "not found" in line.lower()]
                said += [line for line in ivy.stdout.splitlines() if "error" in line.lower()]
                why = "\n".join(said) or ivy.stdout[-2000:]
                return f"{why}\njars are missing. MAVEN_REPOSITORY may name a mirror."
            found = hashlib.sha256(jar.read_bytes()).hexdigest()
            if found != digest:
                return f"{path} has SHA-256 {found}, expected {digest}."
            # Under its name only when it is whole: what is there is not looked at again.
            jar.rename(folder / jar.name)
    return None


def retrieve(scratch: Path, paths: list[str]) -> subprocess.CompletedProcess[str]:
    """Run Ivy: no dependencies, no cache that outlives it."""
    dependencies = "".join(map(dependency, paths))
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="millrace" module="tests"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    settings = []
    if mirror := os.environ.get("MAVEN_REPOSITORY"):
        (scratch / "settings.xml").write_text(
            '<ivysettings><settings defaultResolver="mirror"/><resolvers>'
            f'<ibiblio name="mirror" m2compatible="true" root={quoteattr(mirror)}/>'
            "</resolvers></ivysettings>"
        )
        settings = ["-settings", str(scratch / "settings.xml")]
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is not None and pyspark.origin is not None:
        ivies = (Path(pyspark.origin).parent / "jars").glob("ivy-*.jar")
    else:  # Flink's environment has none, but one beside it
        ivies = ROOT.glob(".venv*/lib/python*/site-packages/pyspark/jars/ivy-*.jar")
    ivy = next(ivies, None)
    if java is None or ivy is None:
        sys.exit("setup: Ivy needs Java, and comes with PySpark. `make setup` installs both.")
    arguments = ["-ivy", str(scratch / "ivy.xml"), "-cache", str(scratch / "cache"), "-warn"]
    pattern = str(scratch / "jars" / "[artifact]-[revision](-[classifier]).[ext]")
    return subprocess.run(
        [java, *proxies(), "-jar", str(ivy), *settings, *arguments, "-retrieve", pattern],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def dependency(path: str) -> str:
    """Return what Ivy calls a jar, given its path in a Maven repository."""
    *organisation, module, revision, jar = path.split("/")
    classifier = jar.removesuffix(".jar").removeprefix(f"{module}-{revision}").removeprefix("-")
    which = f' m:classifier="{classifier}"' if classifier else ""
    return (
        f'<dependency org="{".".join(organisation)}" name="{module}" rev="{revision}" '
        f'transitive="false"><artifact name="{module}" type="jar" ext="jar"{which}/></dependency>'
    )


def proxies() -> list[str]:
    """Return the proxies of the environment as Java takes them."""
    found = []
    for scheme, url in urllib.request.getproxies().items():
        address = urllib.parse.urlsplit(url if "://" in url else f"//{url}")
        if scheme in ("http", "https") and address.hostname:
            found.append(f"-D{scheme}.proxyHost={address.hostname}")
            found.append(f"-D{scheme}.proxyPort={address.port or 80}")
    return found


if __name__ == "__main__":
    main(sys.argv[1:] or [".kafka", ".spark-kafka", ".s3"])
