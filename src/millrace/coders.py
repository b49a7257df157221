"""Coders: how a value becomes bytes and comes back; ``mr.Coder`` is the base of your own."""

from millrace.model.coder import BytesCoder as Bytes
from millrace.model.coder import JsonCoder as Json
from millrace.model.coder import MsgpackCoder as Msgpack
from millrace.model.coder import PickleCoder as Pickle
from millrace.model.pane import PanedCoder as Paned

__all__ = ["Bytes", "Json", "Msgpack", "Paned", "Pickle"]
