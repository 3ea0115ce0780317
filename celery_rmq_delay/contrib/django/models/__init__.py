"""The tables. The collector and the services write them."""

from .audit import Operation, OperationItem, OperatorStatus
from .collectors import CollectorStatus, UnreadableMessage
from .failures import CountedRollup, FailureGroup, LookupValue, Tally
from .insights import (
    ExceptionAdvice,
    Incident,
    InsightHour,
    InsightRun,
    LadderAdvice,
    RecoveryCurve,
    TierOutcome,
    WhatIf,
)
from .tasks import Attempt, CollectedMessage, ExhaustedTask, ParkedTask, Payload, TaskRecord, TaskState

__all__ = [
    "Attempt",
    "CollectedMessage",
    "CollectorStatus",
    "CountedRollup",
    "ExceptionAdvice",
    "ExhaustedTask",
    "FailureGroup",
    "Incident",
    "InsightHour",
    "InsightRun",
    "LadderAdvice",
    "LookupValue",
    "Operation",
    "OperationItem",
    "OperatorStatus",
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
