"""One line makes generate faster; the output stays the same.

Run: python examples/quickstart.py
"""

import lookahead
from lookahead.hf.default_model import load_model

model, tokenizer = load_model("default", dtype="float32")
messages = [{"role": "user", "content": "List the planets, then list them again in reverse order."}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
)

plain = model.generate(**inputs, max_new_tokens=80, do_sample=False)

lookahead.accelerate(model)
fast = model.generate(**inputs, max_new_tokens=80, do_sample=False)

stats = lookahead.last_stats(model)
print(tokenizer.decode(fast[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
print(f"MAT {stats.mean_acceptance_length:.2f}: {stats.new_tokens} tokens in {stats.passes} passes")
print("same ids as plain generate:", plain.tolist() == fast.tolist())
