"""Which image a job starts from, and what is answered to a word that can be none."""

from __future__ import annotations

import pytest

from kinetic._images import image_choice
from kinetic._images.image_choice import Image
from kinetic.errors import OptionError

DIGEST = "sha256:" + "a" * 64


def choose(container_image, base_image_repo=None, *, kind="gpu"):
    return image_choice.choose(container_image, base_image_repo, python="3.12.4", kind=kind, version="1.2.3")


def refused(*words):
    with pytest.raises(OptionError) as caught:
        choose(*words)
    return caught.value


# What is chosen.


@pytest.mark.parametrize("nothing", [None, ""])
def test_who_asks_for_nothing_gets_the_clients_python_and_one_line_that_says_so(nothing):
    image = choose(nothing)

    assert (image.uri, image.installs, image.has_base) == ("python:3.12-slim", True, False)
    assert "python:3.12-slim" in image.note
    assert "\n" not in image.note


@pytest.mark.parametrize("kind", ["cpu", "gpu", "tpu"])
def test_a_prebuilt_image_is_that_of_the_hardware_and_of_this_release(kind):
    image = choose("prebuilt", "ghcr.io/team", kind=kind)

    assert (image.uri, image.installs, image.has_base) == (f"ghcr.io/team/base-{kind}:1.2.3", True, True)


def test_without_a_repository_prebuilt_images_are_kinetics_and_nobody_is_left_to_believe_that_they_are_there():
    image = choose("prebuilt")

    assert image.uri == "kinetic/base-gpu:1.2.3"
    assert "publishes none there" in image.note
    assert "publishes none" not in choose("prebuilt", "ghcr.io/team").note


def test_a_slash_at_the_end_of_a_repository_is_one_too_many():
    assert choose("prebuilt", "ghcr.io/team/").uri == "ghcr.io/team/base-gpu:1.2.3"


@pytest.mark.parametrize(
    "uri",
    [
        "ubuntu",
        "build",
        "python:3.12",
        "team/train:TAG",
        "ghcr.io/team/train",
        "europe-docker.pkg.dev/my-project/images/train__x:v1.0_2-x",
        "localhost/train",
        "localhost:5000/train:1",
        "registry:5000/a/b/c:1",
        "GHCR.io/team/train",
        "[::1]:5000/train",
        f"ghcr.io/team/train@{DIGEST}",
        f"ghcr.io/team/train:1@{DIGEST}",
    ],
)
def test_any_other_image_is_taken_as_it_is_written_and_nothing_is_installed(uri):
    assert choose(uri) == Image(uri, installs=False, has_base=False, note="")


def test_without_a_repository_bundled_packages_go_through_the_store():
    image = choose("bundled")

    assert (image.unpacks, image.installs, image.repository) == (True, True, "")
    assert image.uri.startswith("python:3.")
    assert "unpack their packages from the store: no image repository is set" in image.note


# What is refused.


@pytest.mark.parametrize(
    ("written", "meant", "better"),
    [
        ("prebuild", "prebuilt", 'write container_image="prebuilt"'),
        ("Prebuilt", "prebuilt", 'write container_image="prebuilt"'),
        (" prebuilt", "prebuilt", 'write container_image="prebuilt"'),
        ("pre-built", "prebuilt", 'write container_image="prebuilt"'),
        ("bundeld", "bundled", 'write container_image="bundled"'),
        ("bundle", "bundled", 'write container_image="bundled"'),
    ],
)
def test_a_misspelt_keyword_is_told_what_it_looks_like(written, meant, better):
    error = refused(written)

    assert f"looks like a misspelled {meant!r}" in error.what
    assert better in error.next


def test_a_word_with_a_tag_is_no_keyword():
    assert choose("prebuild:latest").uri == "prebuild:latest"


@pytest.mark.parametrize(
    ("written", "why", "better"),
    [
        (" ghcr.io/team/train", "white space", '"ghcr.io/team/train"'),
        ("ghcr.io/team/train:1\n", "white space", '"ghcr.io/team/train:1"'),
        ("ghcr.io/Team/Train:TAG", "lower-case", '"ghcr.io/team/train:TAG"'),
        ("Team/train", "lower-case", '"team/train"'),
        ("docker://ghcr.io/team/train", "does not begin with docker://", '"ghcr.io/team/train"'),
        ("ghcr.io/team/train:", "registry/repository:tag", "as in"),
        ("ghcr.io//train", "registry/repository:tag", "as in"),
        ("ghcr.io/team/train@sha256:12", "registry/repository:tag", "as in"),
    ],
)
def test_what_no_registry_has_is_refused_before_a_cluster_is_asked(written, why, better):
    error = refused(written)

    assert error.what == f"container_image={written!r} cannot be the name of an image"
    assert why in error.why
    assert better in error.next


@pytest.mark.parametrize(
    ("written", "why", "better"),
    [
        ("ghcr.io/Team", "lower-case", '"ghcr.io/team"'),
        ("ghcr.io/my team", "white space", '"ghcr.io/myteam"'),
        ("ghcr.io/team:1", "no tag", '"ghcr.io/team"'),
        ("ghcr.io/team@x", "registry/repository", "as in"),
    ],
)
def test_what_can_be_no_repository_is_refused_by_its_own_name(written, why, better):
    error = refused("prebuilt", written)

    assert error.what == f"base_image_repo={written!r} cannot be the name of an image repository"
    assert why in error.why
    assert better in error.next


# Base packages.


@pytest.mark.parametrize(("kind", "jax"), [("cpu", "jax"), ("gpu", "jax[cuda12]"), ("tpu", "jax[tpu]")])
def test_base_packages_are_jax_for_the_hardware_and_keras(kind, jax):
    assert image_choice.base_packages(kind, []) == (jax, "keras")


def test_what_a_project_names_itself_is_its_own():
    assert image_choice.base_packages("tpu", ["keras", "rich"]) == ("jax[tpu]",)
    assert image_choice.base_packages("tpu", ["jax"]) == ("keras",)
    assert image_choice.base_packages("tpu", ["jax", "keras"]) == ()
