"""Whole pipelines under test, in process, without a JVM."""

from millrace.testing.harness import Harness
from millrace.testing.output import Output, outputs_of

__all__ = ["Harness", "Output", "outputs_of"]
