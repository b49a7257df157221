# Everything else is in pyproject.toml. Only the list of packages is here, because it has two
# roots: src/ holds `millrace`, and examples/ is installed as `millrace_examples`.
from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages("src", include=["millrace", "millrace.*"]),
        "millrace_examples",
        *(f"millrace_examples.{name}" for name in find_packages("examples")),
    ],
    package_dir={"": "src", "millrace_examples": "examples"},
)
