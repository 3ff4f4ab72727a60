"""Write a picture in a job, and find it after the job was removed.

python examples/output_plot.py
"""

import os

import kinetic


@kinetic.run(accelerator="cpu")
def plot(points):
    """Draw a curve as an SVG file in the output folder: what is there outlives the job."""
    line = " ".join(f"{20 * x},{100 - y}" for x, y in enumerate(points))
    with open(os.path.join(kinetic.output_dir(), "curve.svg"), "w") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg"><polyline fill="none" stroke="teal" points="{line}"/></svg>'
        )
    return max(points)


def main():
    job = plot.run_async([number**2 for number in range(10)])
    print("the highest point:", job.result())  # collects: the job is removed
    picture = os.path.join(job.output_dir, "curve.svg")
    print("the picture:", picture, os.path.getsize(picture), "bytes")
    print(f"or: kinetic outputs get {job.job_id} curve.svg")


if __name__ == "__main__":
    main()
