"""Ask a served model with OpenAI's client (pip install openai), and print its answer as a stream.

shoal serve CHECKPOINT
python examples/ask.py "Once upon a time"
"""

import os
import sys

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"), api_key="any")
model = client.models.list().data[0].id
prompt = sys.argv[1] if len(sys.argv) > 1 else "Once upon a time"
for part in client.completions.create(model=model, prompt=prompt, max_tokens=60, seed=1, stream=True):
    print(part.choices[0].text, end="", flush=True)
print()
