"""Search hyperparameters with Optuna: it proposes, jobs try, two rounds of three trials.

pip install optuna scikit-learn
python examples/optuna_search.py
"""

import optuna

import kinetic


@kinetic.run(accelerator="cpu")
def accuracy(c, gamma):
    """Return how well a support vector machine with these settings reads handwritten digits."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import cross_val_score
    from sklearn.svm import SVC

    pictures, labels = load_digits(return_X_y=True)
    return float(cross_val_score(SVC(C=c, gamma=gamma), pictures[:600] / 16.0, labels[:600], cv=3).mean())


def main():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    for number in range(2):
        trials = [study.ask() for _ in range(3)]
        inputs = [
            {
                "c": trial.suggest_float("c", 0.1, 100, log=True),
                "gamma": trial.suggest_float("gamma", 1e-3, 1, log=True),
            }
            for trial in trials
        ]
        for trial, value in zip(trials, accuracy.run_async_map(inputs, name="svc").results(), strict=True):
            study.tell(trial, value)
        print(f"round {number}: best so far {study.best_value:.3f} with {study.best_params}")


if __name__ == "__main__":
    main()
