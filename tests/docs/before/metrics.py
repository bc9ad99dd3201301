"""What a Trainer takes besides the model."""

from transformers import TrainingArguments

from layerscope.training import LayerWatch

args = TrainingArguments(
    output_dir="trained", max_steps=4, per_device_train_batch_size=4, report_to=[], save_strategy="no", disable_tqdm=True,
    use_cpu=True,
)  # fmt: skip
data = [
    {key: value[0] for key, value in batches[0].items() if key != "token_type_ids"}  # noqa: F821
    for _ in range(16)
]
# a few steps are too short for a measurement, so the file to draw is there already
watch = LayerWatch(model, held_out_texts, tokenizer, out="layers.csv")  # noqa: F821
watch.step(0)
