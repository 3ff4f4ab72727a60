"""Generate text with vLLM on a GPU of this machine, or of a cluster.

    pip install vllm
    python examples/vllm_generate.py Qwen/Qwen2.5-0.5B-Instruct

It needs an NVIDIA GPU and downloads the model; `export HF_TOKEN=…` first for a model that asks for consent.
"""

import shutil
import sys

import kinetic

PROMPTS = ["A job on a cluster is", "The best thing about small models is"]


@kinetic.run(accelerator="gpu-l4", capture_env_vars=["HF_*"], deadline="30m")
def generate(model, prompts):
    """Load the model once, and complete all prompts together."""
    from vllm import LLM, SamplingParams

    engine = LLM(model=model, max_model_len=1024, gpu_memory_utilization=0.8)
    answers = engine.generate(prompts, SamplingParams(max_tokens=32, temperature=0))
    return [answer.outputs[0].text for answer in answers]


def main():
    if shutil.which("nvidia-smi") is None and len(sys.argv) < 2:
        raise SystemExit("this example needs an NVIDIA GPU; name a model to run it on a cluster")
    model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B-Instruct"
    for prompt, answer in zip(PROMPTS, generate(model, PROMPTS), strict=True):
        print(prompt, "…", answer.strip())


if __name__ == "__main__":
    main()
