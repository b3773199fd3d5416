"""Who must approve, and when that is enough."""

from __future__ import annotations

import pytest

from nb_agents.errors import UserError
from nb_agents.tools.policy import ApprovalConfig, ApprovalDecision, Tally


def test_one_approval_decides_where_no_more_are_required() -> None:
    assert Tally(ApprovalConfig()).take(True, "fine", "ann") == ApprovalDecision(
        True, "fine", "ann"
    )


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        (ApprovalDecision(False, "too dear", "ann"), "denied by ann: too dear"),
        (ApprovalDecision(True, "", "ann, bob"), "approved by ann, bob"),
        (ApprovalDecision(False, "", "timeout"), "denied when its time was over"),
        (ApprovalDecision(True, "", "auto_approve_if"), "approved by its condition"),
        (ApprovalDecision(False, "the run is over"), "denied: the run is over"),
    ],
)
def test_a_decision_is_told_with_who_made_it_and_why(decision: ApprovalDecision, told: str) -> None:
    assert str(decision) == told


def test_as_many_different_persons_must_approve_as_are_required() -> None:
    tally = Tally(ApprovalConfig(required_approvals=3))
    assert tally.take(True, "fine", "ann") is None
    assert tally.take(True, "still fine", "ann") is None  # again: she counts once
    assert tally.take(True, "", "bob") is None
    assert str(tally) == "2 of 3 approvals (ann, bob)"
    assert tally.take(True, "go", "cyd") == ApprovalDecision(
        True, "still fine; go", "ann, bob, cyd"
    )


def test_one_who_denies_is_enough() -> None:
    tally = Tally(ApprovalConfig(required_approvals=2))
    tally.take(True, "fine", "ann")
    assert tally.take(False, "too dear", "bob") == ApprovalDecision(False, "too dear", "bob")


@pytest.mark.parametrize("approved", [True, False])
def test_who_is_no_approver_can_not_decide(approved: bool) -> None:
    tally = Tally(ApprovalConfig(approvers=("ann", "bob")))
    with pytest.raises(
        UserError, match="'eve' is not an approver of this run. They are: ann, bob."
    ):
        tally.take(approved, "", "eve")
    assert tally.messages == {}
