"""Jobs as their users run them, on whatever cluster there is: ours, or the one that KINETIC_TEST_KUBECONFIG points at.

For another cluster KINETIC_TEST_STORE names a bucket that this machine and its pods reach, and KINETIC_TEST_NAMESPACE
a namespace in which the current context may make Jobs; the image is `python:X.Y-slim`, from wherever the cluster pulls.
"""

from __future__ import annotations

from typing import Any

import pytest
from cluster.fixtures import OTHER
from flows.kube.conftest import ELSEWHERE


@pytest.fixture
def anywhere(request: pytest.FixtureRequest, batches: Any) -> Any:
    """Clients whose jobs run on the cluster of this test run; ours gets a machine."""
    if not ELSEWHERE[OTHER]:
        request.getfixturevalue("machine")
    return batches


@pytest.mark.real_node
def test_a_value_comes_back_and_nothing_stays(anywhere: Any) -> None:
    found = anywhere.run(
        """
        job = double.run_async(21)
        value = job.result()
        tell([value, job.status().value])
        """
    )

    assert found == [42, "NOT_FOUND"]


@pytest.mark.real_node
def test_an_exception_comes_back_with_its_traceback(anywhere: Any) -> None:
    words = anywhere.run(
        """
        try:
            double(None)
        except TypeError as error:
            tell(message(error))
        """
    )

    assert "Remote traceback" in words
    assert "in double" in words


@pytest.mark.real_node
def test_a_batch_comes_back_in_order(anywhere: Any) -> None:
    assert anywhere.run("tell(double.run_async_map(range(5)).results())") == [0, 2, 4, 6, 8]


@pytest.mark.real_node
def test_a_job_that_is_cancelled_while_it_waits_is_gone(anywhere: Any) -> None:
    found = anywhere.run(
        """
        job = double.with_options(container_image="nowhere.invalid/none:1").run_async(1)
        job.cancel()
        tell([job.status().value, job.job_id in [each.job_id for each in kinetic.list_jobs()]])
        """
    )

    assert found == ["NOT_FOUND", False]
