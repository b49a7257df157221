"""Simulation of the real-time plane: live tasks on machines that fail as a seed says.

Real are the coordinator, the tasks and their packets, channels, segments and seals; Spark's part is
:mod:`.query`: processes, pipes between them, and how a query comes to its end.
"""

from simulation.realtime.remaps import RealtimeRemapping
from simulation.realtime.simulation import RealtimeSimulation

__all__ = ["RealtimeRemapping", "RealtimeSimulation"]
