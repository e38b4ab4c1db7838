"""What `measure` of speed.sh has found: medians, and ratios within a round."""

RATE, GUEST, TARGET = range(3)


def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


class Measured:
    """The lines of /run/measured: WHERE TARGET and three figures, of which there is one for each round."""

    def __init__(self, path='/run/measured'):
        self.found = {}
        for line in open(path):
            where, target, *figures = line.split()
            self.found.setdefault((where, target), []).append([float(figure) for figure in figures])

    def median(self, where, target, figure):
        return median([figures[figure] for figures in self.found[where, target]])

    def ratio(self, where, one, other, figure):
        """One target's figure by another's: the median of the rounds, and the least and the greatest."""
        pairs = zip(self.found[where, one], self.found[where, other])
        every = [a[figure] / b[figure] for a, b in pairs if b[figure]]
        spread = f' ({min(every):.2f}-{max(every):.2f})' if len(every) > 1 else ''
        return f'{median(every):.2f}{spread}' if every else 'none'
