"""Decode every message of an MCAP bag with mcap-ros2-support, which is not ours, and count them.

Needs an environment of its own with that package: python examples/count_messages.py BAG.mcap
"""

import sys
from collections import Counter
from pathlib import Path

from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory

with Path(sys.argv[1]).open("rb") as file:
    reader = make_reader(file, decoder_factories=[DecoderFactory()])
    topics = Counter(message.channel.topic for message in reader.iter_decoded_messages())
print(f"{sum(topics.values())} messages on {len(topics)} topics")
