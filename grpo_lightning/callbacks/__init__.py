"""Lightning callbacks: rollouts, evaluation, samples, export, the run folder."""
