"""Problems to solve: data, networks, objectives. A task chooses no algorithm."""
