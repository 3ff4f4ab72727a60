"""The node agent runs pods as a kubelet would, as far as anybody who asks the API server can tell."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx2
import lightkube
import pytest
from cluster import nodes
from cluster.access import RefusedError
from cluster.images import Image, of_this_python
from cluster.manifests import condition, container, pod_spec
from cluster.plane import wait_for
from lightkube.resources.core_v1 import Pod

DISRUPTIONS_ARE_FREE = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
    ]
}
# The server writes these labels of the node on every pod that it places.
ZONE = '\ntopology.kubernetes.io/region="us-west4"\ntopology.kubernetes.io/zone="us-west4-a"'
FOREVER = "import time\nprint('up')\ntime.sleep(600)"
CATCHES = """
import signal, sys, time
def leave(*_):
    print('told', flush=True)
    time.sleep({seconds})
    print('left', flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print('up', flush=True)
time.sleep(600)
"""


def state(pod, name="main"):
    (found,) = [each["state"] for each in pod["status"]["containerStatuses"] if each["name"] == name]
    return found


# ------------------------------------------------------------------------------------------------------- how jobs end


def test_a_job_runs_to_its_end_and_its_log_is_read_through_the_server(objects, node, client, namespace):
    objects.run_job("hello", pod_spec("print('one'); print('two')", node))

    assert objects.finished("hello") == "Complete"
    (pod,) = objects.pods("job-name=hello")
    assert list(client.log(pod["metadata"]["name"], namespace=namespace)) == ["one\n", "two\n"]
    assert state(pod)["terminated"]["reason"] == "Completed"
    assert pod["status"]["podIP"].startswith("127.")


def test_an_exit_code_fails_the_job_and_can_be_read(objects, node):
    objects.run_job("broken", pod_spec("raise SystemExit(3)", node), podFailurePolicy=DISRUPTIONS_ARE_FREE)

    assert objects.finished("broken") == "Failed"
    (pod,) = objects.pods("job-name=broken")
    assert state(pod)["terminated"]["exitCode"] == 3
    assert condition(objects.job("broken"), "Failed")["reason"] == "PodFailurePolicy"


def test_a_command_that_is_not_there_fails_to_start(objects, node):
    missing = {"command": ["no-such-program"]}

    objects.run_pod("missing", pod_spec("", node, of_container=missing))
    end = state(objects.phase("missing", "Failed"))["terminated"]

    assert (end["exitCode"], end["reason"]) == (128, "StartError")
    assert "executable file not found" in end["message"]


def test_a_crash_shows_as_engines_show_it(objects, node):
    objects.run_pod("crash", pod_spec("import ctypes; ctypes.string_at(0)", node))

    assert state(objects.phase("crash", "Failed"))["terminated"]["exitCode"] == 139


def test_running_out_of_memory_is_simulated_once_a_line_has_been_written(isolated, objects, node):
    code = "import time\nprint('growing')\ntime.sleep(600)"

    objects.run_pod("hungry", pod_spec(code, node), annotations={"kinetic.test/out-of-memory": "growing"})
    end = state(objects.phase("hungry", "Failed"))["terminated"]

    assert (end["exitCode"], end["reason"]) == (137, "OOMKilled")
    assert "simulated" in end["message"]


def test_a_pod_with_a_deadline_is_ended(objects, node):
    objects.run_pod("slow", pod_spec(FOREVER, node, activeDeadlineSeconds=1, terminationGracePeriodSeconds=1))

    assert objects.phase("slow", "Failed")["status"]["reason"] == "DeadlineExceeded"


def test_containers_are_restarted_where_the_policy_says_so(isolated, objects, node):
    code = """
import os
with open('/kept/n', 'a') as file:
    file.write('x')
n = os.path.getsize('/kept/n')
print('run', n)
raise SystemExit(n < 2)
"""
    kept = {"volumeMounts": [{"name": "kept", "mountPath": "/kept"}]}
    spec = pod_spec(
        code, node, of_container=kept, volumes=[{"name": "kept", "emptyDir": {}}], restartPolicy="OnFailure"
    )

    objects.run_pod("again", spec)
    pod = objects.phase("again", "Succeeded")

    assert pod["status"]["containerStatuses"][0]["restartCount"] == 1
    assert objects.log("again") == "run 2\n"
    assert objects.log("again", previous="true") == "run 1\n"


def test_init_containers_run_first_and_one_by_one(isolated, objects, node):
    place = {"volumeMounts": [{"name": "place", "mountPath": "/place"}]}
    note = "import sys\nf = open('/place/f', 'a+'); f.write({text!r}); f.seek(0); print(f.read())"
    inits = [container(note.format(text=name), **place) | {"name": name} for name in ("first", "second")]
    spec = pod_spec(note.format(text="third"), node, of_container=place, volumes=[{"name": "place", "emptyDir": {}}])

    objects.run_pod("steps", {**spec, "initContainers": inits})
    objects.phase("steps", "Succeeded")

    assert objects.log("steps") == "firstsecondthird\n"
    assert objects.log("steps", container="second") == "firstsecond\n"


def test_an_init_container_that_fails_fails_the_pod(objects, node):
    failing = container("raise SystemExit(5)") | {"name": "first"}

    objects.run_pod("stuck", {**pod_spec("print('never')", node), "initContainers": [failing]})
    pod = objects.phase("stuck", "Failed")

    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
    assert "waiting" in state(pod)


# ---------------------------------------------------------------------------------------------- what cannot be started


def test_an_image_that_does_not_exist_is_tried_again_and_again(objects, node):
    objects.run_pod("nowhere", pod_spec("", node, of_container={"image": "registry.test/nowhere:1"}))

    assert "registry.test/nowhere:1" in objects.waiting("nowhere", "ImagePullBackOff")["message"]
    assert objects.pod("nowhere")["status"]["phase"] == "Pending"
    assert any(each.startswith("Failed: Failed to pull image") for each in objects.events("nowhere"))


def test_an_image_can_be_pushed_while_a_pod_waits_for_it(agent, objects, node, namespace):
    image = f"registry.test/{namespace}:1"
    objects.run_pod("patient", pod_spec("import os; print(os.environ['BAKED'])", node, of_container={"image": image}))
    objects.waiting("patient", "ImagePullBackOff")

    agent.registry.add(image, of_this_python()._replace(environment={"BAKED": "in"}))
    objects.phase("patient", "Succeeded")

    assert objects.log("patient") == "in\n"


def test_a_missing_secret_holds_a_container_back_until_it_comes(objects, node, plane):
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "late", "key": "key"}}}]
    objects.run_pod("waits", pod_spec("import os; print(os.environ['KEY'])", node, of_container={"env": env}))
    why = objects.waiting("waits", "CreateContainerConfigError")

    plane.api.create(f"{objects.core}/secrets", {"metadata": {"name": "late"}, "stringData": {"key": "value"}})
    objects.phase("waits", "Succeeded")

    assert why["message"] == 'secret "late" not found'
    assert objects.log("waits") == "value\n"


def test_what_the_agent_cannot_do_is_refused_and_not_pretended(objects, node):
    volumes = [{"name": "disk", "hostPath": {"path": "/"}}]
    mount = {"volumeMounts": [{"name": "disk", "mountPath": "/disk"}]}

    objects.run_pod("host", pod_spec("print('never')", node, of_container=mount, volumes=volumes))

    wait_for("an event", lambda: any("refuses volumes of kind hostPath" in each for each in objects.events("host")))
    assert objects.pod("host")["status"]["phase"] == "Pending"


# ------------------------------------------------------------------------------------------------ what a container sees


def test_variables_come_from_secrets_config_maps_fields_and_each_other(objects, node, plane):
    plane.api.create(f"{objects.core}/secrets", {"metadata": {"name": "keys"}, "stringData": {"token": "s3cret"}})
    plane.api.create(f"{objects.core}/configmaps", {"metadata": {"name": "words"}, "data": {"COLOUR": "red"}})
    env = [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NOTE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['test/note']"}}},
        {"name": "ALL", "value": "$(TOKEN) $(COLOUR) $(UNKNOWN) $$(TOKEN)"},
    ]
    more = {"env": env, "envFrom": [{"configMapRef": {"name": "words"}}], "args": ["$(TOKEN)"]}
    names = "TOKEN COLOUR WHERE ADDRESS NOTE ALL".split()
    code = f"import os, sys; print(*(os.environ[n] for n in {names}), sys.argv[1], sep='|')"

    objects.run_pod("sees", pod_spec(code, node, of_container=more), annotations={"test/note": "hello"})
    pod = objects.phase("sees", "Succeeded")

    address = pod["status"]["podIP"]
    assert objects.log("sees") == f"s3cret|red|{node}|{address}|hello|s3cret red $(UNKNOWN) $(TOKEN)|s3cret\n"


def test_nothing_of_this_process_environment_leaks_into_a_container(objects, node, monkeypatch):
    monkeypatch.setenv("ONLY_OUTSIDE", "1")

    objects.run_pod("clean", pod_spec("import os; print(sorted(os.environ))", node))
    objects.phase("clean", "Succeeded")

    seen = objects.log("clean")
    assert "PATH" in seen
    assert "ONLY_OUTSIDE" not in seen


def test_volumes_are_mounted_where_they_belong(isolated, objects, node, plane):
    plane.api.create(f"{objects.core}/configmaps", {"metadata": {"name": "words"}, "data": {"colour": "red"}})
    plane.api.create(f"{objects.core}/secrets", {"metadata": {"name": "keys"}, "stringData": {"token": "s3cret"}})
    labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    volumes = [
        {"name": "words", "configMap": {"name": "words", "items": [{"key": "colour", "path": "deep/colour"}]}},
        {"name": "keys", "secret": {"secretName": "keys"}},
        {"name": "me", "downwardAPI": {"items": [labels]}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
    ]
    places = {"words": "/etc/words", "keys": "/var/run/keys", "me": "/me", "shm": "/dev/shm"}
    mounts = [{"name": name, "mountPath": path, "readOnly": name == "words"} for name, path in places.items()]
    code = """
import os, shutil
print(open('/etc/words/deep/colour').read(), open('/var/run/keys/token').read(), open('/me/labels').read())
print(shutil.disk_usage('/dev/shm').total)
try:
    open('/etc/words/new', 'w')
except OSError as error:
    print(error.strerror)
"""
    objects.run_pod(
        "mounts", pod_spec(code, node, of_container={"volumeMounts": mounts}, volumes=volumes), labels={"a": "b"}
    )
    objects.phase("mounts", "Succeeded")

    assert objects.log("mounts").replace(ZONE, "") == f'red s3cret a="b"\n{8 << 20}\nRead-only file system\n'


def test_what_a_container_writes_stays_in_it(isolated, objects, node, tmp_path):
    (tmp_path / "mine").write_text("secret of the test")
    code = f"""
import os, socket
print(os.getpid(), socket.gethostname(), os.path.exists({str(tmp_path)!r}), os.getcwd())
for path in ('/usr/left-behind', '/tmp/left-behind', '/root/left-behind'):
    open(path, 'w').write('x')
print(os.listdir('/tmp'))
"""
    objects.run_pod("alone", pod_spec(code, node, of_container={"workingDir": "/new/place"}))
    objects.phase("alone", "Succeeded")

    first, second = objects.log("alone").splitlines()
    assert first == "1 alone False /new/place"
    assert "left-behind" in second
    assert not any(path.exists() for path in (tmp_path.parent / "left-behind", *_left_behind()))


def _left_behind():
    return [Path(folder) / "left-behind" for folder in ("/usr", "/tmp", "/root")]


def test_last_words_are_reported(isolated, objects, node):
    objects.run_pod("words", pod_spec("open('/dev/termination-log', 'w').write('no data'); raise SystemExit(4)", node))

    assert state(objects.phase("words", "Failed"))["terminated"]["message"] == "no data"


def test_a_pod_speaks_to_the_server_as_its_own_account(isolated, objects, node, namespace):
    code = """
import json, os, ssl, urllib.request
where = '/var/run/secrets/kubernetes.io/serviceaccount'
token = open(where + '/token').read()
url = 'https://{KUBERNETES_SERVICE_HOST}:{KUBERNETES_SERVICE_PORT}'.format(**os.environ)
request = urllib.request.Request(url + '/apis/authentication.k8s.io/v1/selfsubjectreviews', method='POST',
    data=json.dumps({'apiVersion': 'authentication.k8s.io/v1', 'kind': 'SelfSubjectReview'}).encode(),
    headers={'Authorization': 'Bearer ' + token, 'Content-Type': 'application/json'})
with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=where + '/ca.crt')) as answer:
    print(json.load(answer)['status']['userInfo']['username'])
"""
    objects.run_pod("account", pod_spec(code, node, automountServiceAccountToken=True))
    objects.phase("account", "Succeeded", "Failed")

    assert objects.log("account") == f"system:serviceaccount:{namespace}:default\n"


# ------------------------------------------------------------------------------------------- being asked while it runs


def test_a_log_is_followed_line_by_line(objects, node, client, namespace):
    code = "import time\nfor n in range(3): print('line', n); time.sleep(0.2)"
    objects.run_pod("talks", pod_spec(code, node))
    objects.phase("talks", "Running", "Succeeded")

    lines = list(client.log("talks", namespace=namespace, follow=True))

    assert lines == ["line 0\n", "line 1\n", "line 2\n"]
    assert objects.log("talks", tailLines="1") == "line 2\n"
    stamp = objects.log("talks", timestamps="true").splitlines()[1].split(" ")[0]
    assert objects.log("talks", sinceTime=stamp) in {"line 1\nline 2\n", "line 2\n", "line 0\nline 1\nline 2\n"}


def test_a_log_of_a_pod_that_has_not_started_says_so(objects, node):
    objects.run_pod("early", pod_spec("", node, of_container={"image": "registry.test/none:1"}))
    objects.waiting("early", "ImagePullBackOff")

    with pytest.raises(RefusedError, match="is waiting to start"):
        objects.log("early")


def test_a_process_that_enters_a_mount_namespace_stays_inside_its_container(isolated, objects, node):
    code = """
import ctypes, os
open("/of-this-container", "w").close()
there = os.open("/proc/self/ns/mnt", os.O_RDONLY)
print(ctypes.CDLL(None).setns(there, 0), os.path.exists("/of-this-container"))
"""

    objects.run_pod("enters", pod_spec(code, node))
    objects.phase("enters", "Succeeded")

    assert objects.log("enters") == "0 True\n"


def test_exec_runs_inside_the_container(isolated, objects, node, client, namespace):
    objects.run_pod("open", pod_spec("open('/inside', 'w').write('seen'); " + FOREVER.replace("\n", "; "), node))
    objects.wrote("open", "up")
    code = "import sys; print(open('/inside').read(), sys.stdin.read()); print('err', file=sys.stderr); sys.exit(7)"

    answer = client.exec(
        "open", namespace=namespace, command=["python", "-c", code], stdin="given", stdout=True, stderr=True, timeout=20
    )

    assert (answer.stdout, answer.stderr, answer.exit_code) == ("seen given\n", "err\n", 7)


def test_a_port_is_forwarded_through_the_server(objects, node, client, namespace, plane):
    code = """
import os, socket
server = socket.create_server((os.environ['ADDRESS'], 0))
print('port', server.getsockname()[1], flush=True)
while True:
    peer = server.accept()[0]
    while data := peer.recv(1000):
        peer.sendall(data.upper())
"""
    env = [{"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    objects.run_pod("echo", pod_spec(code, node, of_container={"env": env}))
    port = objects.wrote("echo", "port").split()[1]

    with (
        httpx2.Client(verify=plane.client.trust(), headers=plane.client.headers(), trust_env=False) as http,
        http.websocket(
            f"{plane.client.url}{objects.core}/pods/echo/portforward",
            params={"ports": port},
            subprotocols=["v4.channel.k8s.io"],
        ) as socket,
    ):
        first = [socket.receive_bytes(timeout=10) for _ in range(2)]
        socket.send_bytes(b"\x00hello")
        answer = socket.receive_bytes(timeout=10)

    number = int(port).to_bytes(2, "little")
    assert first == [b"\x00" + number, b"\x01" + number]
    assert answer == b"\x00HELLO"


# ------------------------------------------------------------------------------------------------------- being ended


def test_sigterm_comes_first_and_is_given_its_time(objects, node, client, namespace):
    objects.run_pod("polite", pod_spec(CATCHES.format(seconds=0.5), node, terminationGracePeriodSeconds=30))
    objects.wrote("polite", "up")
    lines = []
    following = threading.Thread(target=lambda: lines.extend(client.log("polite", namespace=namespace, follow=True)))
    following.start()

    client.delete(Pod, "polite", namespace=namespace)
    following.join()

    assert lines == ["up\n", "told\n", "left\n"]
    wait_for("the pod to be gone", lambda: not objects.pods())


def test_sigkill_comes_after_the_grace(objects, node, client, namespace):
    objects.run_pod("stubborn", pod_spec(CATCHES.format(seconds=600), node, terminationGracePeriodSeconds=1))
    objects.wrote("stubborn", "up")
    lines = []
    following = threading.Thread(target=lambda: lines.extend(client.log("stubborn", namespace=namespace, follow=True)))
    following.start()

    client.delete(Pod, "stubborn", namespace=namespace)
    following.join()

    assert lines == ["up\n", "told\n"]
    wait_for("the pod to be gone", lambda: not objects.pods())


def test_a_deleted_job_takes_its_pods_and_their_processes_along(agent, objects, node, plane, namespace):
    objects.run_job("doomed", pod_spec(FOREVER, node, terminationGracePeriodSeconds=1))
    (pod,) = wait_for("its pod", lambda: objects.pods("job-name=doomed"))
    name = pod["metadata"]["name"]
    objects.wrote(name, "up")
    pid = agent.pids(namespace, name)["main"]

    plane.api.delete(f"{objects.batch}/jobs/doomed", propagationPolicy="Foreground")

    wait_for("the pod to be gone", lambda: not objects.pods())
    assert not _is_alive(pid)


def _is_alive(pid):
    return Path(f"/proc/{pid}").exists()


# -------------------------------------------------------------------------------------------- nodes that are taken away


def test_a_preempted_pod_is_replaced_and_does_not_count(agent, add_node, objects, namespace):
    spot = add_node(nodes.cpu(f"spot-{namespace}", spot=True))
    spec = pod_spec(CATCHES.format(seconds=0.2), nodeSelector={"cloud.google.com/gke-spot": "true"})
    spec["tolerations"] = [{"key": "cloud.google.com/gke-spot", "operator": "Exists"}]
    spec["affinity"] = _on(spot, f"spare-{namespace}")
    objects.run_job("survivor", spec, podFailurePolicy=DISRUPTIONS_ARE_FREE, podReplacementPolicy="Failed")
    (first,) = wait_for("its pod", lambda: objects.pods("job-name=survivor"))
    objects.wrote(first["metadata"]["name"], "up")

    agent.preempt(spot, grace_seconds=5, remove=False)
    lost = objects.phase(first["metadata"]["name"], "Failed")
    log = objects.log(first["metadata"]["name"])
    spare = add_node(nodes.cpu(f"spare-{namespace}", spot=True))
    second = wait_for("another pod to run", lambda: _running_on(spare, objects.pods("job-name=survivor")))

    assert log == "up\ntold\nleft\n"
    assert lost["status"]["reason"] == "Terminated"
    assert condition(lost, "DisruptionTarget")["reason"] == "TerminationByKubelet"
    assert second["spec"]["nodeName"] == spare
    assert not condition(objects.job("survivor"), "Failed")


def _on(*names):
    expressions = [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(names)}]
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def test_a_node_that_loses_its_power_is_noticed(agent, add_node, objects, namespace):
    doomed = add_node(nodes.cpu(f"doomed-{namespace}"))
    objects.run_pod("quiet", pod_spec(FOREVER, doomed))
    objects.wrote("quiet", "up")
    pid = agent.pids(namespace, "quiet")["main"]

    agent.kill(doomed)
    wait_for("the node to count as lost", lambda: _is_unreachable(objects.api, doomed), 60)

    assert not _is_alive(pid)
    assert objects.pod("quiet")["status"]["phase"] == "Running"  # nobody was left to say otherwise
    with pytest.raises(RefusedError, match=r"EOF|reset"):
        objects.log("quiet")


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_a_pod_of_a_lost_node_is_replaced_once_its_node_is_deleted(agent, add_node, objects, namespace):
    doomed = add_node(nodes.cpu(f"doomed-{namespace}"))
    spec = pod_spec(FOREVER, affinity=_on(doomed, f"spare-{namespace}"))
    objects.run_job("survivor", spec, podFailurePolicy=DISRUPTIONS_ARE_FREE)
    (first,) = wait_for("its pod", lambda: objects.pods("job-name=survivor"))
    objects.wrote(first["metadata"]["name"], "up")

    agent.kill(doomed)
    agent.discard_node(doomed)
    spare = add_node(nodes.cpu(f"spare-{namespace}"))
    # The garbage collector of pods looks every 20 s, and believes after 40 s more that a node is gone.
    second = wait_for("another pod", lambda: _running_on(spare, objects.pods("job-name=survivor")), 180)

    assert second["spec"]["nodeName"] == spare
    assert not condition(objects.job("survivor"), "Failed")


def _running_on(node, pods):
    here = [pod for pod in pods if pod["spec"].get("nodeName") == node and pod["status"].get("phase") == "Running"]
    return here[0] if here else None


def _is_unreachable(api, node):
    taints = api.get(f"/api/v1/nodes/{node}")["spec"].get("taints") or []
    return any(taint["key"] == "node.kubernetes.io/unreachable" for taint in taints)


def test_an_offline_node_tells_later_what_happened(agent, objects, node):
    objects.run_pod("quiet", pod_spec("import time\nprint('up')\ntime.sleep(0.5)", node))
    objects.wrote("quiet", "up")

    agent.set_offline(node)
    with pytest.raises(RefusedError, match=r"EOF|reset"):
        objects.log("quiet")
    agent.set_online(node)

    objects.phase("quiet", "Succeeded")


def test_a_device_that_is_gone_is_not_given_out(agent, add_node, objects, namespace):
    name = add_node(nodes.gpu(f"gpu-{namespace}"))
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]

    agent.take_away_capacity(name, "nvidia.com/gpu")
    objects.run_pod("late", pod_spec("print('ran')", name, of_container=limits, tolerations=tolerations))
    wait_for("a reason", lambda: any("Insufficient nvidia.com/gpu" in each for each in objects.events("late")))
    agent.give_back_capacity(name, "nvidia.com/gpu")

    objects.phase("late", "Succeeded")


# ------------------------------------------------------------------------------------------------- slices, and restarts


def test_hosts_of_an_indexed_job_find_each_other_by_name(isolated, objects, node, plane):
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": "slice"}}
    plane.api.create(f"{objects.core}/services", {"metadata": {"name": "peers"}, "spec": service})
    code = """
import os, socket, sys, time
index = int(os.environ['JOB_COMPLETION_INDEX'])
def look(name):
    while True:
        try:
            return socket.getaddrinfo(name, 7000)[0][4][0]
        except OSError:
            time.sleep(0.05)
if index == 0:
    server = socket.create_server((look('slice-0.peers'), 0))
    print('port', server.getsockname()[1], flush=True)
mine, other = look(f'slice-{index}.peers'), look(f'slice-{1 - index}.peers')
print(socket.gethostname(), mine != other, look('slice-0.peers') == (mine if index == 0 else other), flush=True)
time.sleep(0.5)
"""
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2}

    objects.run_job("slice", pod_spec(code, node, subdomain="peers"), **spec)

    assert objects.finished("slice") == "Complete"
    logs = sorted(objects.log(pod["metadata"]["name"]).splitlines()[-1] for pod in objects.pods("job-name=slice"))
    assert logs == ["slice-0 True True", "slice-1 True True"]


def test_a_restart_of_the_api_server_loses_neither_the_agent_nor_its_pods(objects, node, plane):
    objects.run_pod("during", pod_spec("import time\nprint('up')\ntime.sleep(1)\nprint('done')", node))
    objects.wrote("during", "up")

    plane.restart_api_server()
    objects.phase("during", "Succeeded")
    objects.run_pod("after", pod_spec("print('after')", node))
    objects.phase("after", "Succeeded")

    assert objects.log("during") == "up\ndone\n"


def test_many_pods_at_once_have_addresses_of_their_own(objects, node):
    objects.run_job("many", pod_spec("print('ok')", node), completions=20, parallelism=20)

    assert objects.finished("many") == "Complete"
    pods = objects.pods("job-name=many")
    assert len({pod["status"]["podIP"] for pod in pods}) == 20
    assert all(objects.log(pod["metadata"]["name"]) == "ok\n" for pod in pods)


def test_an_image_may_hold_another_python(agent, objects, node):
    agent.registry.add("bare:1", Image())

    objects.run_pod(
        "bare", pod_spec("", node, of_container={"image": "bare:1", "command": ["sh", "-c", "echo $0 $PATH"]})
    )
    objects.phase("bare", "Succeeded")

    assert objects.log("bare").startswith("sh /usr/local/sbin")


def test_a_followed_log_ends_without_a_word_when_the_power_goes(agent, add_node, objects, namespace, client):
    doomed = add_node(nodes.cpu(f"doomed-{namespace}"))
    objects.run_pod("talks", pod_spec(FOREVER, doomed))
    objects.wrote("talks", "up")
    lines = client.log("talks", namespace=namespace, follow=True)
    assert next(lines) == "up\n"

    agent.kill(doomed)
    rest = list(lines)

    # The API server ends its answer in good order although the node's was cut: a follower has to ask the pod as well.
    assert rest == []
    assert objects.pod("talks")["status"]["phase"] == "Running"


def test_the_agent_lets_nobody_in_without_a_certificate(agent):
    with httpx2.Client(verify=False, trust_env=False) as http, pytest.raises(httpx2.HTTPError):
        http.get(f"https://{agent.address}:{agent.port}/containerLogs/a/b/c")


def test_a_client_error_names_the_status(client, namespace):
    with pytest.raises(lightkube.ApiError, match="not found"):
        client.get(Pod, "nobody", namespace=namespace)
