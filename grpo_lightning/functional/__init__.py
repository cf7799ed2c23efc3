"""Pure tensor functions of the algorithm: each names its paper, its formula and the shapes it takes."""
