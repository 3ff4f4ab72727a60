"""Mount a folder at a fixed path, for code that expects its files there.

python examples/volume_words.py
"""

import os
import tempfile

import kinetic

FOLDER = tempfile.mkdtemp(prefix="volume-words-")
with open(os.path.join(FOLDER, "words.txt"), "w") as file:
    file.write("one two three")

# Where KINETIC_VOLUME_ROOT is set, volumes are below that folder; see docs/volumes.md.
MOUNTED = os.environ.get("KINETIC_VOLUME_ROOT", "") + "/data/words"


@kinetic.run(accelerator="cpu", volumes={"/data/words": kinetic.Data(FOLDER)})
def count():
    """Count the words of a file at a path that exists only in this job."""
    with open(os.path.join(MOUNTED, "words.txt")) as words:
        return len(words.read().split())


def main():
    print("words:", count())
    print("here, the path exists:", os.path.exists("/data/words"))


if __name__ == "__main__":
    main()
