"""Fine-tune a language model with LoRA, on a model that this example makes itself: no download, no GPU, some seconds.

    pip install torch transformers peft
    python examples/lora_tiny.py

The model has random weights and some 40,000 parameters, so it learns nothing useful. docs/hugging-face.md fine-tunes a
real one.
"""

import os

import kinetic

SENTENCE = b"kinetic runs a function as a job. "


@kinetic.run(accelerator="cpu")
def finetune(steps, rank):
    """Train only the small matrices of LoRA, keep them, and return the loss before and after."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = get_peft_model(
        GPT2LMHeadModel(config),
        LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"),
    )
    model.print_trainable_parameters()

    tokens = torch.tensor([list(SENTENCE)])  # bytes are the tokens
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    losses = []
    for step in range(steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)
    adapter = os.path.join(kinetic.output_dir(), "adapter")
    model.save_pretrained(adapter)
    return {"first": losses[0], "last": losses[-1], "adapter": adapter}


def main():
    result = finetune(30, rank=4)
    print(f"the loss went from {result['first']:.3f} to {result['last']:.3f}")
    print("the adapter:", sorted(os.listdir(result["adapter"])))


if __name__ == "__main__":
    main()
