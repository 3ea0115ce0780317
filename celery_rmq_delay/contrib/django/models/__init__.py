"""The tables. The collector and the services write them."""

from .audit import Operation, OperationItem, OperatorStatus
from .collected import CollectorStatus, CountedRollup, FailureGroup, LookupValue, Tally, UnreadableMessage
from .insights import InsightRun, Row
from .tasks import Attempt, CollectedMessage, ExhaustedTask, ParkedTask, Payload, TaskRecord, TaskState

__all__ = [
    "Attempt", "CollectedMessage", "CollectorStatus", "CountedRollup", "ExhaustedTask", "FailureGroup", "InsightRun",
    "LookupValue", "Operation", "OperationItem", "OperatorStatus", "ParkedTask", "Payload", "Row", "Tally",
    "TaskRecord", "TaskState", "UnreadableMessage",
]  # fmt: skip
