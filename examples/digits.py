"""Train a small Keras model on handwritten digits, as a job that needs no client.

    make demo

The job is submitted, and from then on it needs neither this script nor the terminal: press Ctrl-C while it trains, and
use one of the printed commands to look at it again. The digits come with scikit-learn, so nothing is downloaded.
"""

import os
import shutil
import sys

import kinetic

EPOCHS = 10
# The command as you can paste it: with its folder, unless the environment of this Python is active.
KINETIC = shutil.which("kinetic") or os.path.join(os.path.dirname(sys.executable), "kinetic")


@kinetic.run(accelerator="cpu")
def train(epochs):
    """Train, keep the model, and return how good it is. Everything in here happens inside the job."""
    import keras  # in the job KERAS_BACKEND is "jax", unless you capture another one
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()  # 1,797 grey pictures of 8 by 8 pixels, values 0 to 16
    pictures = digits.images[..., None] / 16.0
    seen, unseen, seen_labels, unseen_labels = train_test_split(
        pictures, digits.target, test_size=360, random_state=0, stratify=digits.target
    )
    print(f"{len(seen)} digits to learn from, {len(unseen)} to be tested on; Keras uses {keras.backend.backend()}")

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    # verbose=2: a line for each epoch. The default draws a bar, which is not made for a log.
    model.fit(seen, seen_labels, validation_data=(unseen, unseen_labels), epochs=epochs, verbose=2)

    _, accuracy = model.evaluate(unseen, unseen_labels, verbose=0)
    kept = os.path.join(os.environ["KINETIC_OUTPUT_DIR"], "digits.keras")  # files there are kept after the job
    model.save(kept)
    return {"accuracy": float(accuracy), "tested": len(unseen), "model": kept}


def main():
    job = train.run_async(EPOCHS)
    print(f"submitted {job.job_id}")
    print("it keeps running without this script; from any other terminal:")
    print(f"    {KINETIC} jobs logs {job.job_id} --follow")
    print(f"    {KINETIC} jobs cancel {job.job_id}")
    print(flush=True)

    try:
        job.logs(follow=True)  # prints the log as it grows, until the job ends
    except KeyboardInterrupt:
        print(f"\ndetached: the job keeps running. Its result: {KINETIC} jobs result {job.job_id}")
        return 130

    found = job.result()  # the value is loaded, and the job's files in the store are removed
    print()
    print(f"accuracy: {found['accuracy']:.1%} of {found['tested']} digits that were not used for training")
    print(f"the trained model: {found['model']}")
    print(f"the job's record: {KINETIC} jobs list --all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
