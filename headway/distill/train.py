"""Trains a model on answers, by SFT or by logit distillation (towards the teacher's token distribution).

Run by the training Python: `python train.py '{"model": DIR, "rows": [FILE], "out": DIR, "teacher_share": 0.8, ..}'`.
Prints its progress as JSON lines. Writes losses to OUT/losses.csv, checkpoints to OUT/checkpoints, from which the next
run resumes, and the trained model to OUT/model. Imports nothing of Headway except packing.py, by its path.

Both methods use TRL's SFTTrainer with a custom loss. Without Triton, TRL's own loss (1.16) computes logits for the
prompt's tokens too, which is most of the work on a CPU; this one computes them for the answer only. TRL's
DistillationTrainer has the student generate the answers, which takes longer on a CPU than the training, and gives
teacher and student the same prompt; here the student's may be shorter (without the tools that it learns by heart).
The teacher's distribution at every token comes with its answers (`collect --top-logprobs`).
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

IGNORED = -100
NEVER = -1e9  # added to the score of a masked token
# Tokens. Below, PyTorch's fused attention is slower on CPUs than the eager one; above, the eager one, which keeps every
# score, runs out of memory.
LONG_PACK = 512
DEFAULTS: dict[str, Any] = {
    "teacher_share": 0.0,  # weight of the distance to the teacher's distribution; the rest is cross-entropy
    "template": None,  # chat template that replaces the model's own
    "epochs": 1.0,
    "batch": 4,  # packs per step
    "pack_tokens": 1024,
    "learning_rate": 3e-4,
    "max_tokens": 1024,
    "train_embedding": True,
    "seed": 0,
    "threads": None,
    "minutes": None,  # time limit: training stops there and the model is saved
    "save_every": 50,
}


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def read_rows(paths: list[str]) -> list[dict[str, Any]]:
    rows = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            rows += [json.loads(line) for line in file]
    return rows


def load_sibling(name: str) -> Any:
    """Load a module of this folder, which is not on sys.path (training_env.py explains why)."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look it up there
    spec.loader.exec_module(module)
    return module


def progress_callback(settings: dict[str, Any], out: Path) -> Any:
    """Prints each logged loss, writes losses.csv, and stops the training at the time limit."""
    from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

    class Progress(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            self.began = time.monotonic()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            if not logs or "loss" not in logs:
                return
            tokens, took = logs.get("num_tokens"), time.monotonic() - self.began
            say(
                step=state.global_step, of=state.max_steps, loss=round(logs["loss"], 4), tokens=tokens, s=round(took, 1)
            )
            lines = [f"{one['step']},{one['loss']}\n" for one in state.log_history if "loss" in one]
            (out / "losses.csv").write_text("step,loss\n" + "".join(lines))

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if settings["minutes"] and time.monotonic() - self.began > 60 * settings["minutes"]:
                control.should_training_stop = True

    return Progress()


def has_bf16_instructions() -> bool:
    """Without them bf16 is emulated: a matrix product takes three to five times as long as in float32."""
    try:
        return re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", Path("/proc/cpuinfo").read_text("utf-8")) is not None
    except OSError:
        return True  # not Linux


def trainer_arguments(settings: dict[str, Any], out: Path) -> Any:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from trl import SFTConfig  # type: ignore[import-not-found,unused-ignore]

    return SFTConfig(
        output_dir=str(out / "checkpoints"),
        num_train_epochs=settings["epochs"],
        per_device_train_batch_size=settings["batch"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="cosine",
        warmup_steps=0.05,  # below one: a fraction of all steps
        weight_decay=0.01,
        max_grad_norm=1.0,
        bf16=torch.cuda.is_available() or has_bf16_instructions(),
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,  # small models need time more than memory
        max_length=settings["max_tokens"],
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        train_sampling_strategy="group_by_length",  # less padding
        length_column_name="length",
        optim="adamw_torch_fused",
        logging_steps=10,
        logging_first_step=True,
        save_steps=settings["save_every"],
        save_total_limit=1,
        seed=settings["seed"],
        data_seed=settings["seed"],
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def tokenize(row: dict[str, Any], tokenizer: Any, packing: Any, with_teacher: bool) -> Any:
    """A row as tokens: the prompt in this model's own template, then the teacher's answer and the end of turn."""
    prompt = tokenizer.apply_chat_template(
        row["messages"], tools=row.get("tools"), add_generation_prompt=True, tokenize=False
    )
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    prefix_key = json.dumps([row.get("tools"), [one for one in row["messages"] if one["role"] == "system"]])
    if not with_teacher:
        answer = tokenizer(row["answer"] + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
        return packing.Row(prefix_key, prompt_ids, answer)
    try:
        top = row["top_logprobs"]
        ids = [[token for token, _ in one] for one in top]
        logps = [[logp for _, logp in one] for one in top]
        return packing.Row(prefix_key, prompt_ids, row["answer_ids"], ids, logps)
    except KeyError as error:
        raise SystemExit(
            f"A row has no {error}: collect the answers from vLLM, which returns token ids, with --top-logprobs, "
            "or train with --teacher-share 0."
        ) from None


def collate(batch: list[dict[str, Any]], pad_id: int) -> dict[str, Any]:
    """A batch, padded on the right. A token attends to earlier tokens of its own branch and trunk (packing.py)."""
    import torch

    longest = max(one["length"] for one in batch)

    def padded(name: str, filler: int) -> Any:
        return torch.tensor([list(one[name]) + [filler] * (longest - one["length"]) for one in batch])

    branch, trunk = padded("branch", 0), padded("trunk", 0)
    own, shared = branch[:, :, None] == branch[:, None, :], trunk[:, :, None] == branch[:, None, :]
    sees = (own | shared) & torch.ones(longest, longest, dtype=torch.bool).tril()
    whole = {"input_ids": padded("input_ids", pad_id), "labels": padded("labels", IGNORED)}
    whole |= {"position_ids": padded("positions", 0), "sees": sees[:, None]}
    # In the order in which a mask over the labels selects them.
    top_ids, top_logps = ([row for one in batch for row in one[name]] for name in ("top_ids", "top_logps"))
    if top_ids:
        whole |= {"top_ids": torch.tensor(top_ids), "top_logps": torch.tensor(top_logps)}
    return whole


def answer_trainer(settings: dict[str, Any]) -> Any:
    """SFTTrainer whose loss is cross-entropy on the answer's tokens plus the distance to the teacher's distribution."""
    import torch
    from trl import SFTTrainer  # type: ignore[import-not-found,unused-ignore]

    share = settings["teacher_share"]

    class AnswerTrainer(SFTTrainer):  # type: ignore[misc,unused-ignore]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            ids, labels = inputs["input_ids"], inputs["labels"][:, 1:]
            mask = inputs["sees"]
            if settings["pack_tokens"] < LONG_PACK:  # eager attention adds its mask to the scores
                mask = torch.zeros(mask.shape, device=ids.device).masked_fill_(~mask, NEVER)
            at = labels != IGNORED
            with self.accelerator.autocast():  # the trainer wraps only a call of the whole model
                states = model.base_model(
                    input_ids=ids, attention_mask=mask, position_ids=inputs["position_ids"], use_cache=False
                )[0]
                logits = model.get_output_embeddings()(states[:, :-1][at]).float()
            loss = torch.nn.functional.cross_entropy(logits, labels[at], reduction="sum")
            if share:
                logps = torch.log_softmax(logits, dim=-1)
                distance = forward_kl(logps, inputs["top_ids"], inputs["top_logps"]).sum()
                loss = (1 - share) * loss + share * distance
            self._total_train_tokens += ids.numel()
            self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
            return loss / (at.sum() if num_items_in_batch is None else num_items_in_batch)

    return AnswerTrainer


def forward_kl(logps: Any, top_ids: Any, top_logps: Any) -> Any:
    """KL(teacher ‖ student) over the teacher's most likely tokens, with all other tokens merged into one."""
    import torch

    student = logps.gather(1, top_ids)
    teacher_rest = (1 - top_logps.exp().sum(dim=1)).clamp(min=1e-6)
    student_rest = (1 - student.exp().sum(dim=1)).clamp(min=1e-6)
    seen = (top_logps.exp() * (top_logps - student)).sum(dim=1)
    return seen + teacher_rest * (torch.log(teacher_rest) - torch.log(student_rest))


def main(settings: dict[str, Any]) -> None:
    import torch
    from datasets import Dataset  # type: ignore[import-not-found,unused-ignore]
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
    from transformers.trainer_utils import get_last_checkpoint  # type: ignore[import-not-found,unused-ignore]

    settings = {**DEFAULTS, **settings}
    out = Path(settings["out"])
    out.mkdir(parents=True, exist_ok=True)
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    set_seed(settings["seed"])
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    tokenizer.chat_template = settings["template"] or tokenizer.chat_template
    packing = load_sibling("packing")
    rows = [tokenize(row, tokenizer, packing, settings["teacher_share"] > 0) for row in read_rows(settings["rows"])]
    # Truncating a longer row would cut off its answer, which is what it teaches.
    used = [row for row in rows if row.length <= settings["max_tokens"]]
    if not used:
        raise SystemExit(
            f"All {len(rows)} rows are longer than {settings['max_tokens']} tokens: there is nothing to train on."
        )
    packs = packing.pack_rows(used, settings["pack_tokens"], settings["seed"])
    alone, tokens = sum(row.length for row in used), sum(pack.length for pack in packs)
    say(rows=len(rows), used=len(used), packs=len(packs), tokens_an_epoch=tokens, tokens_alone=alone)
    # Train in fp32: the update steps are too small for bf16.
    model = AutoModelForCausalLM.from_pretrained(
        settings["model"],
        dtype=torch.float32,
        attn_implementation="sdpa" if settings["pack_tokens"] >= LONG_PACK else "eager",
    )
    model.get_input_embeddings().weight.requires_grad_(settings["train_embedding"])
    trainer = answer_trainer(settings)(
        model,
        args=trainer_arguments(settings, out),
        train_dataset=Dataset.from_list([{**asdict(pack), "length": pack.length} for pack in packs]),
        processing_class=tokenizer,
        data_collator=lambda batch: collate(batch, tokenizer.pad_token_id),
        callbacks=[progress_callback(settings, out)],
    )
    checkpoints = out / "checkpoints"
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None)
    model.to(torch.bfloat16).save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")
    say(written=str(out / "model"), loss=trainer.state.log_history[-1].get("train_loss"))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
