"""The tables. The collector and the services write them; the admin only reads."""

from .groups import CountedRollup, FailureGroup, LookupValue, Tally
from .insights import Incident, InsightHour, InsightRun, LadderAdvice, RecoveryCurve, TierOutcome, WhatIf
from .operations import Operation, OperationItem
from .records import Attempt, CollectedMessage, ExhaustedTask, ParkedTask, Payload, TaskRecord, TaskState
from .running import CollectorStatus, UnreadableMessage

__all__ = [
    "Attempt",
    "CollectedMessage",
    "CollectorStatus",
    "CountedRollup",
    "ExhaustedTask",
    "FailureGroup",
    "Incident",
    "InsightHour",
    "InsightRun",
    "LadderAdvice",
    "LookupValue",
    "Operation",
    "OperationItem",
    "ParkedTask",
    "Payload",
    "RecoveryCurve",
    "Tally",
    "TaskRecord",
    "TaskState",
    "TierOutcome",
    "UnreadableMessage",
    "WhatIf",
]
