"""Ask experts on pictures for a digit, with OpenAI's client:  shoal serve DIR, then  python examples/picture.py 7"""

import base64
import os
import sys
from pathlib import Path

from openai import OpenAI

prompt = sys.argv[1] if len(sys.argv) > 1 else "7"
client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"), api_key="any")
answer = client.images.generate(prompt=prompt, n=4, size="256x256", extra_body={"seed": 1})
for number, picture in enumerate(answer.data or []):
    path = Path(f"picture-{number}.png")
    path.write_bytes(base64.b64decode(picture.b64_json or ""))
    print(f"wrote {path}")
