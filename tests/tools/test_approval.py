"""Approvers and the required number of approvals."""

from __future__ import annotations

import pytest

from nb_agents.errors import UserError
from nb_agents.options import ApprovalConfig
from tests.kit.tools import ApprovalDecision, Tally


def test_one_approval_is_enough_by_default() -> None:
    assert Tally(ApprovalConfig()).take(True, "fine", "ann") == ApprovalDecision(
        True, "fine", "ann"
    )


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        (ApprovalDecision(False, "too dear", "ann"), "denied by ann: too dear"),
        (ApprovalDecision(True, "", "ann, bob"), "approved by ann, bob"),
        (ApprovalDecision(False, "", "timeout"), "denied by timeout"),
        (ApprovalDecision(True, "", "auto_approve_if"), "approved by its condition"),
        (ApprovalDecision(False, "the run is over"), "denied: the run is over"),
    ],
)
def test_decision_text_names_user_and_reason(decision: ApprovalDecision, told: str) -> None:
    assert str(decision) == told


def test_required_number_of_users_must_approve() -> None:
    tally = Tally(ApprovalConfig(required_approvals=3))
    assert tally.take(True, "fine", "ann") is None
    assert tally.take(True, "still fine", "ann") is None  # again: a user counts once
    assert tally.take(True, "", "bob") is None
    assert str(tally) == "2 of 3 approvals (ann, bob)"
    assert tally.take(True, "go", "cyd") == ApprovalDecision(
        True, "still fine; go", "ann, bob, cyd"
    )


def test_one_denial_denies() -> None:
    tally = Tally(ApprovalConfig(required_approvals=2))
    tally.take(True, "fine", "ann")
    assert tally.take(False, "too dear", "bob") == ApprovalDecision(False, "too dear", "bob")


@pytest.mark.parametrize("approved", [True, False])
def test_user_who_is_not_an_approver_is_rejected(approved: bool) -> None:
    tally = Tally(ApprovalConfig(approvers=("ann", "bob")))
    with pytest.raises(
        UserError, match="'eve' is not an approver of this run. Approvers: ann, bob."
    ):
        tally.take(approved, "", "eve")
    assert tally.messages == {}
