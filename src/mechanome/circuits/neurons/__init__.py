"""Circuits of neurons: nodes per layer, token position and neuron, scored by RelP (paper 20).

```python
nodes = Nodes.of(model, prompts)                       # every neuron at every position; at= for other bases
found = attribute(nodes, prompts, metric, counterfactuals)
runs = evaluate([found.top(n) for n in (30, 100)], held_out, metric, Fill.means(nodes, prompts))
```
"""

from mechanome.circuits.neurons.attributing import METHODS, NodeScores, attribute
from mechanome.circuits.neurons.edges import NodeEdges, node_edges
from mechanome.circuits.neurons.evaluating import LEAST, NodeRuns, evaluate, nodes_needed, ratio, run_edited
from mechanome.circuits.neurons.labels import label_auroc
from mechanome.circuits.neurons.node_circuit import Fill, NodeCircuit
from mechanome.circuits.neurons.nodes import POINTS, Nodes, SiteNodes
from mechanome.circuits.neurons.steering import Steered, steer

__all__ = [
    "LEAST",
    "METHODS",
    "POINTS",
    "Fill",
    "NodeCircuit",
    "NodeEdges",
    "NodeRuns",
    "NodeScores",
    "Nodes",
    "SiteNodes",
    "Steered",
    "attribute",
    "evaluate",
    "label_auroc",
    "node_edges",
    "nodes_needed",
    "ratio",
    "run_edited",
    "steer",
]
