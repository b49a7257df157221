"""Triggers: when in processing time the result of a window is emitted."""

from millrace.dataflow.triggers.choice import AllOf, FirstOf
from millrace.dataflow.triggers.clock import AfterDelay, AtPeriod
from millrace.dataflow.triggers.context import FireMode
from millrace.dataflow.triggers.data import AfterBytes, AfterCount, Punctuation
from millrace.dataflow.triggers.repeat import Repeat, RepeatCount, RepeatUntil
from millrace.dataflow.triggers.sequence import SequenceOf
from millrace.dataflow.triggers.signal import OnCall, OnSignal
from millrace.dataflow.triggers.trigger import CompositeTrigger, Trigger
from millrace.dataflow.triggers.watermark import AtWatermark

__all__ = [
    "AfterBytes",
    "AfterCount",
    "AfterDelay",
    "AllOf",
    "AtPeriod",
    "AtWatermark",
    "CompositeTrigger",
    "FireMode",
    "FirstOf",
    "OnCall",
    "OnSignal",
    "Punctuation",
    "Repeat",
    "RepeatCount",
    "RepeatUntil",
    "SequenceOf",
    "Trigger",
]
