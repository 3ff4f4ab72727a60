"""Profile a JAX training step in a job, and list the trace that it left.

    pip install jax
    python examples/profile_jax.py

Open perfetto_trace.json.gz in Perfetto's viewer, or the folder in XProf; docs/jax-profiling.md says what to look for.
"""

import os

import kinetic


@kinetic.run(accelerator="tpu-v5e-1")
def train(steps):
    """Trace some steps after the first, which compiles."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def step(weights):
        return weights - 0.01 * jnp.tanh(weights @ weights.T) @ weights

    weights = step(jnp.ones((128, 128))).block_until_ready()
    with jax.profiler.trace(kinetic.output_dir(), create_perfetto_trace=True):
        for number in range(steps):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                weights = step(weights)
        weights.block_until_ready()
    return float(weights[0, 0])


def main():
    job = train.run_async(5)
    print("a weight after five steps:", job.result())
    for folder, _, names in os.walk(job.output_dir):
        for name in sorted(names):
            print(os.path.relpath(os.path.join(folder, name), job.output_dir))


if __name__ == "__main__":
    main()
