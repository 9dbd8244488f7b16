"""A drafter of your own: it proposes from a list of phrases that you expect in the answer.

Run: python examples/own_drafter.py

Once the text ends with the first word of a phrase, the rest of the phrase is the guess. A wrong
phrase costs a little time and never changes the answer.
"""

import lookahead
from lookahead.hf.default_model import load_model

PHRASES = [
    "Dear [Name],\n\nI hope this letter finds you well.",
    " I am writing to inform you that",
    " sincerely apologize for any inconvenience this may have caused.",
    " Thank you for your patience and understanding.",
]


class PhraseDrafter:
    """Proposes the rest of every phrase of which the text has just written the beginning."""

    name = "phrases"

    def __init__(self, tokenizer, phrases):
        self.phrases = [tokenizer.encode(text, add_special_tokens=False) for text in phrases]

    def draft(self, context, max_nodes):
        """Return all guesses of what comes after ``context``; none is fine too."""
        guesses = []
        for phrase in self.phrases:
            fits = [seen for seen in range(1, len(phrase)) if context[-seen:] == phrase[:seen]]
            guesses.extend(phrase[seen:][:max_nodes] for seen in fits)
        return guesses


def main():
    model, tokenizer = load_model("default", dtype="float32")
    request = "Write a short, polite letter to a customer whose parcel is late."
    chat = [{"role": "user", "content": request}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    plain = model.generate(**inputs, max_new_tokens=96, do_sample=False)

    drafter = PhraseDrafter(tokenizer, PHRASES)
    with lookahead.accelerate(model, drafters=(drafter,), nodes=8):
        fast = model.generate(**inputs, max_new_tokens=96, do_sample=False)
        stats = lookahead.last_stats(model)

    print(tokenizer.decode(fast[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    for name, source in stats.by_source.items():
        print(f"{name}: {source.offered} offered, {source.accepted} accepted")
    print(f"MAT {stats.mean_acceptance_length:.2f}; same ids as plain: {fast.equal(plain)}")


if __name__ == "__main__":
    main()
