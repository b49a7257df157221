"""The examples in docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import millrace

MODULES = sorted(
    {
        "millrace",
        *(
            module.name
            for module in pkgutil.walk_packages(millrace.__path__, "millrace.")
            if not module.name.endswith("__main__")
        ),
    }
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)

    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0
