"""Run one JAX program on a slice of four hosts, emulated by four processes on this machine.

    pip install jax
    python examples/slice_sum.py

With a project that has TPUs, the same function runs on a real v5e slice.
"""

import kinetic


@kinetic.run(accelerator="tpu-v5litepod-16")
def add_up():
    """Spread the numbers 0 to 15 over all chips, and add them across all hosts."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    print(f"host {jax.process_index()} of {jax.process_count()}: {jax.local_device_count()} chips", flush=True)
    each_chip = NamedSharding(Mesh(jax.devices(), "chips"), PartitionSpec("chips"))
    numbers = jax.jit(lambda: jnp.arange(16.0), out_shardings=each_chip)()
    return {"hosts": jax.process_count(), "chips": jax.device_count(), "sum": float(numbers.sum())}


def main():
    print(add_up())


if __name__ == "__main__":
    main()
