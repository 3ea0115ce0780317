"""Capacity planning: how many tasks a load parks, and what RabbitMQ needs for them. Pure arithmetic, no broker.

May import `operations` and what is below it.
"""

from .estimate import Estimate, estimate
from .flow import Flow, LevelFlow, TierFlow, flow, level_flow
from .workload import Workload

__all__ = ["Estimate", "Flow", "LevelFlow", "TierFlow", "Workload", "estimate", "flow", "level_flow"]
