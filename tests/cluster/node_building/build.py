"""Build what a real node is made of, once per recipe; `make node` runs this.

Three minutes after `make cluster`, thirteen without it, since both compile Kubernetes. It can be stopped: what is
whole stays, and the next run continues with the rest.
"""

from __future__ import annotations

import subprocess
import sys

from cluster import binaries, node_images
from cluster.building import build


def main() -> int:
    """Make what is missing; return the exit status."""
    recipe = binaries.NODE
    if not recipe.missing() and not node_images.missing():
        build.say(f"all there: {recipe.folder()}")
        return 0
    refusal = node_images.why_debian_will_not_do() or (build.why_go_will_not_do(recipe) if recipe.missing() else "")
    if refusal:
        build.say(refusal)
        return 1
    with build.only_one_at_a_time(recipe):
        build.make_programs(recipe)
        for what, at, make in node_images.STEPS:
            if not at().exists():
                build.say(f"making {what}")
                make()
    build.say(f"ready: {recipe.folder()}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        build.say(f"`{' '.join(error.cmd[:3])}` failed, see above; what was built before it stays")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
