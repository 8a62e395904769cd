"""Selectors: which latents are active, and what their pre-activations become."""

from mechanome.dictionaries.selectors.batch_top_k import BatchTopKSelector
from mechanome.dictionaries.selectors.gate import GateSelector
from mechanome.dictionaries.selectors.jump import JumpSelector
from mechanome.dictionaries.selectors.selector import Selector
from mechanome.dictionaries.selectors.threshold import ReluSelector
from mechanome.dictionaries.selectors.top_k import TopKSelector

__all__ = ["BatchTopKSelector", "GateSelector", "JumpSelector", "ReluSelector", "Selector", "TopKSelector"]
