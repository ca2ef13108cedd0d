"""Trains a model on answers: plainly (SFT), or towards the teacher's distribution over them (logit distillation).

Run by the training Python: `python train.py '{"model": DIR, "rows": [FILE], "out": DIR, "teacher_share": 0.8, ..}'`.
Says its progress in JSON lines; losses are in OUT/losses.csv, checkpoints in OUT/checkpoints, from which it goes on
when it is run again, and the trained model in OUT/model. Imports nothing of Headway but packs.py, by its path.

Both are TRL's SFTTrainer with a loss of our own. Its own (1.16) scores the whole vocabulary at every token of the
prompt too where there is no Triton, which on a CPU is most of the work; here only the answer's tokens are. TRL's
DistillationTrainer lets the student write the answers it is corrected on, which on a CPU takes longer than the
training, and gives teacher and student the same prompt, while here the student may see a shorter one (tools it shall
know by heart). What the teacher would have said at every token comes with its answers (`collect --top-logprobs`).
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

IGNORED = -100
NEVER = -1e9  # added to the score of a token that must not be seen
LONG_PACK = 512  # tokens: below, PyTorch's fused attention is slower on CPUs than the plain one; above, the plain one
# keeps every score and runs out of memory
DEFAULTS: dict[str, Any] = {
    "teacher_share": 0.0,  # of the loss: the distance to the teacher's distribution; the rest is the answer itself
    "template": None,  # a chat template in place of the model's own
    "epochs": 1.0,
    "batch": 4,  # packs to a step
    "pack_tokens": 1024,
    "learning_rate": 3e-4,
    "max_tokens": 1024,
    "train_embedding": True,
    "seed": 0,
    "threads": None,
    "minutes": None,  # a bound: training stops there, and what it has learnt is kept
    "save_every": 100,
}


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def read_rows(paths: list[str]) -> list[dict[str, Any]]:
    rows = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            rows += [json.loads(line) for line in file]
    return rows


def beside(name: str) -> Any:
    """A module of this folder, which is not on the path (training_env.py says why)."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def progress_callback(settings: dict[str, Any], out: Path) -> Any:
    """Says each logged loss, writes losses.csv, and stops at the time allowed."""
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


def trainer_arguments(settings: dict[str, Any], out: Path) -> Any:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from trl import SFTConfig  # type: ignore[import-not-found,unused-ignore]

    return SFTConfig(
        output_dir=str(out / "checkpoints"),
        num_train_epochs=settings["epochs"],
        per_device_train_batch_size=settings["batch"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="cosine",
        warmup_steps=0.05,  # below one: a share of all
        weight_decay=0.01,
        max_grad_norm=1.0,
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,  # small models: time is scarcer than memory
        max_length=settings["max_tokens"],
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        train_sampling_strategy="group_by_length",  # little padding
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


def as_row(row: dict[str, Any], tokenizer: Any, packs: Any, with_teacher: bool) -> Any:
    """The prompt as this model's own template has it; the answer as the teacher wrote it, with the end of its turn."""
    prompt = tokenizer.apply_chat_template(
        row["messages"], tools=row.get("tools"), add_generation_prompt=True, tokenize=False
    )
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    begins = json.dumps([row.get("tools"), [one for one in row["messages"] if one["role"] == "system"]])
    if not with_teacher:
        answer = tokenizer(row["answer"] + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
        return packs.Row(begins, prompt_ids, answer)
    try:
        top = row["top_logprobs"]
        ids = [[token for token, _ in one] for one in top]
        logps = [[logp for _, logp in one] for one in top]
        return packs.Row(begins, prompt_ids, row["answer_ids"], ids, logps)
    except KeyError as error:
        raise SystemExit(
            f"A row has no {error}: collect the answers with --top-logprobs from vLLM, which names its tokens, "
            "or train with a teacher share of 0."
        ) from None


def collate(batch: list[dict[str, Any]], pad_id: int) -> dict[str, Any]:
    """Padded on the right. A token sees what stands before it in its own branch and in its trunk (packs.py)."""
    import torch

    longest = max(one["length"] for one in batch)

    def padded(name: str, filler: int) -> Any:
        return torch.tensor([list(one[name]) + [filler] * (longest - one["length"]) for one in batch])

    branch, trunk = padded("branch", 0), padded("trunk", 0)
    own, shared = branch[:, :, None] == branch[:, None, :], trunk[:, :, None] == branch[:, None, :]
    sees = (own | shared) & torch.ones(longest, longest, dtype=torch.bool).tril()
    whole = {"input_ids": padded("input_ids", pad_id), "labels": padded("labels", IGNORED)}
    whole |= {"position_ids": padded("positions", 0), "sees": sees[:, None]}
    # In the order of the batch, as a mask over the labels takes them.
    top_ids, top_logps = ([row for one in batch for row in one[name]] for name in ("top_ids", "top_logps"))
    if top_ids:
        whole |= {"top_ids": torch.tensor(top_ids), "top_logps": torch.tensor(top_logps)}
    return whole


def answer_trainer(settings: dict[str, Any]) -> Any:
    """SFTTrainer whose loss is that of the answer's tokens, and the distance to the teacher's distribution there."""
    import torch
    from trl import SFTTrainer  # type: ignore[import-not-found,unused-ignore]

    share = settings["teacher_share"]

    class AnswerTrainer(SFTTrainer):  # type: ignore[misc,unused-ignore]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            ids, labels = inputs["input_ids"], inputs["labels"][:, 1:]
            mask = inputs["sees"]
            if settings["pack_tokens"] < LONG_PACK:  # the plain attention adds its mask
                mask = torch.zeros(mask.shape, device=ids.device).masked_fill_(~mask, NEVER)
            at = labels != IGNORED
            with self.accelerator.autocast():  # the trainer puts it around the whole model only
                states = model.base_model(
                    input_ids=ids, attention_mask=mask, position_ids=inputs["position_ids"], use_cache=False
                )[0]
                logits = model.get_output_embeddings()(states[:, :-1][at]).float()
            loss = torch.nn.functional.cross_entropy(logits, labels[at], reduction="sum")
            if share:
                logps = torch.log_softmax(logits, dim=-1)
                away = forward_kl(logps, inputs["top_ids"], inputs["top_logps"]).sum()
                loss = (1 - share) * loss + share * away
            self._total_train_tokens += ids.numel()
            self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
            return loss / (at.sum() if num_items_in_batch is None else num_items_in_batch)

    return AnswerTrainer


def forward_kl(logps: Any, top_ids: Any, top_logps: Any) -> Any:
    """KL(teacher ‖ student) where the teacher's most likely tokens count one by one and all others as one."""
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
    packs = beside("packs")
    rows = [as_row(row, tokenizer, packs, settings["teacher_share"] > 0) for row in read_rows(settings["rows"])]
    # A row that is longer would lose its answer, which is all it teaches.
    used = [row for row in rows if row.length <= settings["max_tokens"]]
    if not used:
        raise SystemExit(
            f"None of {len(rows)} rows has at most {settings['max_tokens']} tokens: there is nothing to learn."
        )
    found = packs.lay(used, settings["pack_tokens"], settings["seed"])
    alone, tokens = sum(row.length for row in used), sum(pack.length for pack in found)
    say(rows=len(rows), used=len(used), packs=len(found), tokens_an_epoch=tokens, tokens_alone=alone)
    # The weights are kept in fp32 while they are trained: steps are too small for bf16.
    model = AutoModelForCausalLM.from_pretrained(
        settings["model"],
        dtype=torch.float32,
        attn_implementation="sdpa" if settings["pack_tokens"] >= LONG_PACK else "eager",
    )
    model.get_input_embeddings().weight.requires_grad_(settings["train_embedding"])
    trainer = answer_trainer(settings)(
        model,
        args=trainer_arguments(settings, out),
        train_dataset=Dataset.from_list([{**asdict(pack), "length": pack.length} for pack in found]),
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
