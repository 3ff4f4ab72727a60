"""`kinetic up --create-project`: from no project at all, each step refused or cut off, and run again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from servers.cluster_maker import Killed, killed_at
from servers.google_cloud import Fault

from kinetic.errors import AccessDeniedError, ClusterError, KineticError

if TYPE_CHECKING:
    from servers.cluster_maker import Maker
    from servers.google_cloud import GoogleCloud

ACCOUNT = "012345-567890-ABCDEF"
NEW: dict[str, Any] = {"create_project": True, "billing_account": ACCOUNT}


@pytest.fixture
def nothing(cloud: GoogleCloud) -> GoogleCloud:
    cloud.exists = False
    return cloud


def test_a_project_is_made_paid_for_and_gets_a_cluster(maker: Maker, nothing: GoogleCloud) -> None:
    plan = maker.up("v5litepod-4", **NEW)

    assert nothing.exists
    assert nothing.billing == f"billingAccounts/{ACCOUNT}"
    assert nothing.methods(writes=True)[:3] == [
        "cloudresourcemanager.projects.create",
        "serviceusage.services.batchEnable",  # the API of billing itself
        "cloudbilling.projects.updateBillingInfo",
    ]
    assert plan.lines()[1].startswith(f"  + project {nothing.project}")
    assert plan.setup.location == "us-west4"  # Google cannot be asked where it is sold: its usual region
    member = next(iter(nothing.storage.policies[f"{nothing.project}-kn-team-jobs"].members("roles/storage.objectUser")))
    assert f"projects/{nothing.number}/" in member
    nothing.read_only = True
    assert maker.plan("v5litepod-4", **NEW).to_do == []


def test_a_dry_run_reads_once_and_writes_nothing(maker: Maker, nothing: GoogleCloud) -> None:
    nothing.read_only = True

    plan = maker.plan(**NEW)

    assert nothing.methods() == ["cloudresourcemanager.projects.get"]
    assert any("not known before it is tried" in line for line in plan.lines())


def test_who_may_not_make_projects_in_a_folder_is_told_before_anything_is_written(maker, nothing) -> None:
    nothing.denied = {"resourcemanager.projects.create"}

    with pytest.raises(AccessDeniedError) as refused:
        maker.up(parent="folders/7", **NEW)

    assert nothing.writes == []
    assert "roles/resourcemanager.projectCreator" in str(refused.value)
    assert "folders/7" in str(refused.value.next)
    nothing.denied = set()
    maker.up(parent="folders/7", **NEW)
    assert nothing.projects.parent == "folders/7"


def test_a_project_that_is_just_made_may_be_seen_late(maker: Maker, nothing: GoogleCloud) -> None:
    nothing.before = lambda call: (
        setattr(nothing, "unseen_project", 6) if call.method == "cloudresourcemanager.projects.create" else None
    )

    maker.up(**NEW)

    assert nothing.exists


def test_an_id_that_is_taken_is_named(maker: Maker, nothing: GoogleCloud) -> None:
    nothing.before = lambda call: nothing.projects.__dict__.update(_new_project=taken)

    with pytest.raises(ClusterError, match=f"the project id {nothing.project} is taken"):
        maker.up(**NEW)


def taken(_: Any) -> Any:
    from servers.google_cloud import Refusal

    raise Refusal(409, "Requested entity already exists", "ALREADY_EXISTS")


def test_a_project_that_exists_is_used_and_never_removed(maker: Maker, cloud: GoogleCloud) -> None:
    plan = maker.up(create_project=True, billing_account="000000-000000-000001")

    assert plan.lines()[1] == f"  = project {cloud.project}"
    maker.down()
    assert cloud.exists
    assert "cloudresourcemanager.projects.delete" not in cloud.methods()


def test_a_project_that_is_being_deleted_is_not_used(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.projects.lifecycle = "DELETE_REQUESTED"

    with pytest.raises(KineticError, match="cannot be used") as refused:
        maker.up(**NEW)

    assert "DELETE_REQUESTED" in str(refused.value)
    assert cloud.writes == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after its effect"])
def test_killed_at_each_of_its_first_calls_and_run_again_there_is_one_project(after, maker, nothing) -> None:
    for index in range(12):
        nothing.exists, nothing.billing = False, ""
        nothing.enabled = {"serviceusage.googleapis.com", "cloudresourcemanager.googleapis.com"}
        with killed_at(index, after=after), pytest.raises(Killed):
            maker.up(**NEW)

        maker.up(**NEW)

        assert nothing.exists, index
        assert nothing.billing == f"billingAccounts/{ACCOUNT}"
        maker.down()


@pytest.mark.parametrize("status", [403, 412, 429, 500, 503])
def test_a_refusal_to_make_it_is_explained_and_the_next_run_makes_it(status, maker, nothing) -> None:
    nothing.faults = [Fault(status=status, method="cloudresourcemanager.projects.create", times=-1)]

    with pytest.raises(KineticError) as refused:
        maker.up(**NEW)

    assert refused.value.next
    nothing.faults = []
    maker.up(**NEW)
    assert nothing.exists
