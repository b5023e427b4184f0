"""A impression to a running service: python examples/client.py http://127.0.0.1:8000 ann"""

import json
import sys
import uuid
from typing import Any
from urllib.request import Request, urlopen


def ask(address: str, body: dict[str, Any], token: str = "") -> Any:
    """Post a document and return the answer."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    with urlopen(Request(address, json.dumps(body).encode(), headers), timeout=30) as answer:
        return json.load(answer)


if __name__ == "__main__":
    base, user = sys.argv[1:3]
    shown = ask(f"{base}/v1/recommendations", {"user_id": user, "k": 5})
    for item in shown["items"]:
        name = item["title"] or item["item_id"]
        print(f"{item['rank']}. {name} (shown with probability {item['propensity']:.2f})")
    click = {"event_id": str(uuid.uuid4()), "user_id": user, "item_id": shown["items"][0]["item_id"]}
    click |= {"type": "click", "recommendation_id": shown["recommendation_id"]}
    print(ask(f"{base}/v1/events", {"events": [click]}))  # sent again after an error, it would count once
