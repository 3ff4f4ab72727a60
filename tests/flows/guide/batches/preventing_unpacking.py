@kinetic.run(accelerator="cpu")
def process(items):
    return sum(items)

batch = process.run_async_map([[1, 2, 3], [4, 5, 6]], input_mode="single")
