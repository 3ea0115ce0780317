"""Findings about queues without our dead-letter arguments: not adopted, adopted, or partly adopted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...app.queues import KEEP
from ...commands import command
from ...management.policies import DLX, applying, differences
from ..findings import Finding

if TYPE_CHECKING:
    from ...management.records import Policy, QueueDetail
    from ...topology.applied import Adoption
    from ...topology.ladder import LadderPlan


def dlx_missing(plan: LadderPlan, problem: str) -> Finding:
    """Return the finding that a queue has our dead-letter exchange neither by arguments nor by a policy."""
    found = f"It exists without our dead-letter exchange: every retry costs a publish with confirm. {problem}"
    hint = f"Run `{_adopt(plan)}`. {KEEP} The queue's exchange is {plan.names.dlx(plan.queue)}."
    return Finding("dlx-missing", "warning", plan.queue, found, hint)


def adoption_findings(
    plan: LadderPlan, adoption: Adoption | None, detail: QueueDetail | None, policies: Iterable[Policy]
) -> Iterator[Finding]:
    """Compare the recorded adoption with the policies in effect; needs the management API."""
    if detail is None:
        return
    by_policy = detail.policy_definition.get(DLX) == plan.names.dlx(plan.queue)
    if adoption is None or not adoption.in_force:
        if by_policy:
            found = f"The dead-letter exchange comes from the policy {detail.policy!r}; retries are still published."
            hint = f"No action needed: its failed tasks reach their delay queues. `{_adopt(plan)}` lets workers reject."
            yield Finding("dlx-by-policy", "note", plan.queue, found, hint)
        return
    others = [policy for policy in policies if policy.name != adoption.policy]
    if not by_policy:
        why = f"the policy {detail.policy!r} applies instead" if detail.policy else "no policy applies to it"
        found = f"It was adopted by the policy {adoption.policy!r}, and {why}: messages that workers reject are lost."
        yield Finding("adoption-lost", "error", plan.queue, found, f"Run `{_adopt(plan)}` now.")
        return
    base = applying(others, plan.queue, detail.type, adoption.base)
    changed = differences(adoption.base_definition, base.definition if base else {})
    if changed:
        name = base.name if base else adoption.base
        found = f"The policy {name!r}, merged into that of its adoption, has changed: {', '.join(changed)}."
        yield Finding("adoption-outdated", "warning", plan.queue, found, f"Run `{_adopt(plan)}`.")


def _adopt(plan: LadderPlan) -> str:
    return command(f"adopt --queue {plan.queue}")
