"""The control plane is a real one, and breaks when a test asks it to."""

from __future__ import annotations

import http.client
import time

import httpx2
import lightkube
import pytest
from cluster import nodes
from cluster.access import RefusedError
from cluster.manifests import condition, job, pod_spec
from cluster.plane import wait_for
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod


def test_a_real_client_reads_the_kubeconfig_and_creates_a_job_with_strict_validation(client, plane, namespace):
    body = job("hello", pod_spec("print('hello')"))

    plane.api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", body)

    assert client.get(Job, "hello", namespace=namespace).spec.backoffLimit == 0


def test_an_unknown_field_is_refused(plane, namespace):
    body = job("hello", pod_spec("pass"), ttlSecondsAfterFinnished=1)

    with pytest.raises(RefusedError, match="unknown field") as caught:
        plane.api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", body)

    assert caught.value.status == 400


def test_a_pod_that_fits_nowhere_says_why(add_node, objects, namespace):
    name = add_node(nodes.tpu(f"tpu-{namespace}", topology="2x4", chips=8))
    limits = {"resources": {"limits": {"google.com/tpu": "4"}}}

    objects.run_pod("lost", pod_spec("pass", name, of_container=limits))

    # The scheduler may look before it has heard of the node; then it looks again.
    wait_for("the reason", lambda: "untolerated taint" in _unschedulable(objects.pod("lost")))
    wait_for("an event", lambda: any("FailedScheduling" in each for each in objects.events("lost")))


def _unschedulable(pod):
    found = [each for each in pod["status"].get("conditions", []) if each.get("reason") == "Unschedulable"]
    return found[0]["message"] if found else ""


def test_a_job_gets_chips_only_where_labels_taints_and_counts_agree(add_node, objects, namespace):
    name = add_node(nodes.tpu(f"tpu-{namespace}", topology="2x2", chips=4, spot=True))
    tolerations = [
        {"key": "google.com/tpu", "operator": "Exists"},
        {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"},
    ]
    chips = {"resources": {"limits": {"google.com/tpu": "4"}}}
    spec = pod_spec("import time; time.sleep(600)", of_container=chips, tolerations=tolerations)
    spec["nodeSelector"] = {"kubernetes.io/hostname": name, "cloud.google.com/gke-tpu-topology": "2x2"}

    objects.run_pod("first", spec)
    objects.phase("first", "Running")
    objects.run_pod("second", spec)
    why = wait_for("a reason", lambda: _unschedulable(objects.pod("second")))

    assert "Insufficient google.com/tpu" in why


def test_a_jobset_webhook_refuses_what_the_schema_lets_through(plane, namespace):
    body = jobset("twice", namespace)
    body["spec"]["replicatedJobs"] *= 2  # the same name twice

    with pytest.raises(RefusedError) as caught:
        plane.api.create(f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets", body)

    assert caught.value.status in {403, 422}


def test_a_jobset_runs_to_its_end(plane, objects, node, namespace):
    plane.api.create(f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets", jobset("slice", namespace, node))

    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/slice"
    done = wait_for("the JobSet to complete", lambda: condition(_with_status(plane.api.get(path)), "Completed"), 60)

    assert done["type"] == "Completed"
    logs = [objects.log(pod["metadata"]["name"]) for pod in objects.pods("jobset.sigs.k8s.io/jobset-name=slice")]
    assert logs == ["slice-host-0-0.slice is there\n", "slice-host-0-0.slice is there\n"]


def _with_status(thing):
    return {"status": {}, **thing}


def jobset(name, namespace, node=""):
    leader = f"{name}-host-0-0.{name}"
    code = f"""
import socket, time
while True:
    try:
        socket.getaddrinfo({leader!r}, 1)
        break
    except OSError:
        time.sleep(0.05)
print({leader!r}, "is there")
time.sleep(1)
"""
    template = {"spec": pod_spec(code, node)}
    inner = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    spec = {"replicatedJobs": [{"name": "host", "replicas": 1, "template": {"spec": inner}}]}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def test_leaderworkerset_and_kueue_are_known_by_their_definitions(plane):
    groups = {each["name"] for each in plane.api.get("/apis")["groups"]}

    assert {"leaderworkerset.x-k8s.io", "kueue.x-k8s.io", "jobset.x-k8s.io"} <= groups


# -------------------------------------------------------------------------------------------------- what can go wrong


def test_the_proxy_counts_requests_and_injects_refusals(client, plane, namespace):
    fault = plane.proxy.fail(status=429, target="/pods", times=1)

    with pytest.raises(httpx2.HTTPStatusError) as caught:
        list(client.list(Pod, namespace=namespace))
    assert list(client.list(Pod, namespace=namespace)) == []

    assert caught.value.response.status_code == 429
    assert caught.value.response.headers["retry-after"] == "1"
    assert fault.met == 1
    assert [each.status for each in plane.proxy.calls("GET", "/pods")] == [429, 200]


def test_a_group_that_is_hidden_is_neither_listed_nor_served_and_then_it_is_again(plane, namespace):
    with httpx2.Client(
        base_url=plane.client.url,
        verify=plane.client.trust(),
        headers={**plane.client.headers(), "Connection": "close"},  # none that ends between two looks
        trust_env=False,
    ) as client:

        def look():
            names = {group["name"] for group in client.get("/apis").json()["groups"]}
            return (
                "jobset.x-k8s.io" in names,
                "batch" in names,
                client.get("/apis/jobset.x-k8s.io/v1alpha2").status_code,
            )

        plane.proxy.hide("jobset.x-k8s.io")
        hidden = look()
        plane.proxy.faults.clear()

        assert (hidden, look()) == ((False, True, 404), (True, True, 200))


def test_the_proxy_keeps_connections_for_the_next_request(plane):
    connection = http.client.HTTPSConnection("127.0.0.1", plane.proxy.port, context=plane.client.trust(), timeout=10)
    connection.connect()
    socket = connection.sock

    for _ in range(20):
        connection.request("GET", "/version", headers=plane.client.headers())
        assert b"gitVersion" in connection.getresponse().read()

    assert connection.sock is socket
    connection.close()


def test_a_request_can_be_carried_out_and_its_answer_lost(client, plane, namespace):
    plane.proxy.fail("lose", method="POST", target="/configmaps")

    with pytest.raises(httpx2.HTTPError):
        client.create(ConfigMap(metadata=ObjectMeta(name="done", namespace=namespace)))

    assert client.get(ConfigMap, "done", namespace=namespace)


def test_a_watch_comes_through_the_proxy_as_it_happens(client, plane, namespace, objects):
    seen = client.watch(ConfigMap, namespace=namespace, fields={"metadata.name": "news"})

    plane.api.create(f"{objects.core}/configmaps", {"metadata": {"name": "news"}})
    kind, what = next(iter(seen))

    assert (kind, what.metadata.name) == ("ADDED", "news")


def test_an_expired_watch_is_answered_with_gone(plane, namespace, objects):
    before = plane.api.get(f"{objects.core}/configmaps")["metadata"]["resourceVersion"]
    plane.api.create(f"{objects.core}/configmaps", {"metadata": {"name": "later"}})

    plane.expire_watches()
    answer = plane.api.get(f"{objects.core}/configmaps", watch="true", resourceVersion=before, timeoutSeconds="5")

    assert '"code":410' in str(answer).replace(" ", "").replace("'", '"')


def test_a_revoked_token_is_unauthorized_until_it_is_restored(client, plane, namespace):
    client.get(Namespace, "default")

    plane.revoke_token()
    with pytest.raises(lightkube.ApiError) as caught:
        client.get(Namespace, "default")
    plane.restore_token()

    assert caught.value.status.code == 401
    assert client.get(Namespace, "default")


@pytest.mark.nightly  # half a minute of processor time
def test_a_server_that_was_restarted_six_times_has_pods_run_at_once(plane, objects, node):
    for _ in range(6):
        plane.restart_api_server()
    begun = time.monotonic()

    objects.run_job("quick", pod_spec("print('done')", node))
    wait_for("its pod", lambda: [pod for pod in objects.pods() if pod["status"].get("phase") == "Succeeded"])

    assert time.monotonic() - begun < 20  # without a restart of the controllers, after six it took 48


def test_a_finished_job_is_deleted_when_its_time_is_over(objects, node):
    objects.run_job("short", pod_spec("print('done')", node), ttlSecondsAfterFinished=0)

    def gone():
        try:
            objects.job("short")
        except RefusedError as refused:
            return refused.status == 404
        return False

    wait_for("the Job to be deleted", gone)
    wait_for("its pods to be deleted", lambda: not objects.pods())
