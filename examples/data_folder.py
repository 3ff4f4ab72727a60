"""Give a job a folder of files, twice: the second time only what changed is uploaded.

python examples/data_folder.py
"""

import os
import sys
import tempfile

import kinetic


@kinetic.run(accelerator="cpu")
def count_lines(folder):
    """Count the lines of each file. The job gets a path, and never meets a kinetic.Data object."""
    counted = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as file:
            counted[name] = sum(1 for _ in file)
    return counted


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="data-folder-")
    for name, lines in (("a.txt", 3), ("b.txt", 5)):
        with open(os.path.join(folder, name), "w") as file:
            file.write("a line\n" * lines)
    before = kinetic.Data(folder)
    hashed = before.content_hash()
    print("first:", count_lines(before))

    with open(os.path.join(folder, "b.txt"), "a") as file:
        file.write("one more\n")
    after = kinetic.Data(folder)
    print("then:", count_lines(after))
    print("the content differs:", hashed != after.content_hash())


if __name__ == "__main__":
    main()
