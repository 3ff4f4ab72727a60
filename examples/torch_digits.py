"""Train a small PyTorch network on handwritten digits, on a GPU where there is one.

    pip install torch scikit-learn
    python examples/torch_digits.py

The digits come with scikit-learn, so nothing is downloaded.
"""

import os

import kinetic


@kinetic.run(accelerator="gpu-l4")
def train(epochs):
    """Train, keep the weights, and return the accuracy on digits that were not seen."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    digits = load_digits()
    seen, unseen, seen_labels, unseen_labels = (
        torch.as_tensor(each).to(device)
        for each in train_test_split(
            (digits.data / 16.0).astype("float32"), digits.target, test_size=360, random_state=0, stratify=digits.target
        )
    )
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        for rows in torch.randperm(len(seen), device=device).split(64):
            loss = torch.nn.functional.cross_entropy(model(seen[rows]), seen_labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)

    torch.save(model.state_dict(), os.path.join(kinetic.output_dir(), "digits.pt"))
    accuracy = (model(unseen).argmax(dim=1) == unseen_labels).float().mean()
    return {"device": device, "accuracy": float(accuracy)}  # numbers, not tensors of a GPU


def main():
    print(train(10))


if __name__ == "__main__":
    main()
