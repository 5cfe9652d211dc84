package forecast

// terms is how many terms a fit has at most.
const terms = 6

// vector are the terms of an observation, or their weights.
type vector = [terms]float64

func dot(v, w *vector) float64 {
	sum := 0.0
	for i := range v {
		sum += v[i] * w[i]
	}
	return sum
}

const (
	// fading is what an observation counts when the next one has come: the last five hundred count most.
	fading = .998
	// trust is what a weight from before the first observation counts beside one observation. Observations differ from the fit by about a tenth,
	// the first weights by about a factor of three.
	trust = 1e-3
)

// fit learns y as a sum of terms, each times a weight of 0 or more, by least squares of errors over y + unsure. Later observations count more.
// Terms that observations cannot tell apart keep their first weights.
type fit struct {
	n       int     // of the terms
	unsure  float64 // by how much any y may be wrong, in its unit: the smaller one is, the less it counts
	first   vector  // weights before the first observation
	trusts  vector  // trust, or what counts in its place
	weights vector
	a       [terms]vector // sum of x xᵀ / (y + unsure)²
	b       vector        // sum of x y / (y + unsure)²
	beside  *fit          // of another part of the same times; nil: there is none
	c       [terms]vector // sum of x zᵀ / (y + unsure)², z that part's terms
}

func newFit(first ...float64) fit {
	f := fit{n: len(first)}
	copy(f.first[:], first)
	for i := range f.trusts {
		f.trusts[i] = trust
	}
	f.weights = f.first
	return f
}

// of is what the fit says of terms.
func (f *fit) of(x vector) float64 { return dot(&x, &f.weights) }

// learnFrom takes in an observation at one engine, and the engine's ratio. What came in much less time than expected was held up before, so it counts as
// half of what is expected: one such observation would outweigh thousands of others. Where the engine looks slower than others, it counts as half of what
// engines take in the mean: else a slow engine would take long to look fast again, and the others would look slow with it. The ratio is over what is
// expected with this observation: what all engines have taught the fit is not the engine's own. It returns what the observation counts as, and what is
// expected now.
func (f *fit) learnFrom(x vector, y float64, of *ratio) (counts, expected float64) {
	counts = max(y, f.of(x)*of.atMostUsual()/2)
	f.learn(x, vector{}, counts)
	expected = f.of(x)
	of.add(counts, expected)
	return counts, expected
}

// learn takes an observation in, y more than 0. z are the terms of the part of y that is not this fit's.
func (f *fit) learn(x, z vector, y float64) {
	about := y + f.unsure
	for i := range f.n {
		part := x[i] / (about * about)
		for j := range terms {
			f.a[i][j] = fading*f.a[i][j] + part*x[j]
			f.c[i][j] = fading*f.c[i][j] + part*z[j]
		}
		f.b[i] = fading*f.b[i] + part*y
	}
	f.solve()
}

// solve finds the best weights that are 0 or more.
func (f *fit) solve() {
	a, b := f.equations()
	last := 0
	for i, w := range f.weights {
		if w > 0 {
			last |= 1 << i
		}
	}
	if w, ok := solved(a, b, last, f.n); ok && best(&a, &b, &w, last, f.n) { // nearly always: an observation rarely changes which weights are 0
		f.weights = w
		return
	}
	f.weights = bestOfAll(a, b, f.n)
}

// equations are those of the best weights, a w = b, if these could be negative.
func (f *fit) equations() (a [terms]vector, b vector) {
	a, b = f.a, f.b
	for i := range f.n {
		ridge := f.trusts[i] / (f.first[i] * f.first[i])
		a[i][i] += ridge
		b[i] += ridge * f.first[i]
		if f.beside != nil {
			b[i] -= dot(&f.c[i], &f.beside.weights)
		}
	}
	return a, b
}

// bestOfAll are the best of the weights of all subsets of n terms.
func bestOfAll(a [terms]vector, b vector, n int) (weights vector) {
	least := 0.0
	for set := 1; set < 1<<n; set++ {
		w, ok := solved(a, b, set, n)
		if !ok {
			continue
		}
		squares := 0.0 // of the errors, but for a constant
		for i := range n {
			squares += w[i] * (dot(&a[i], &w) - 2*b[i])
		}
		if squares < least {
			least, weights = squares, w
		}
	}
	return weights
}

// best reports whether the weights of a set are the best of all: the error grows with every other weight.
func best(a *[terms]vector, b, w *vector, set, n int) bool {
	for i := range n {
		if set>>i&1 == 0 && dot(&a[i], w) < b[i] {
			return false
		}
	}
	return true
}

// solved solves a w = b for the terms of a set; other weights are 0. It returns false if a weight is negative, or if two terms are the same but for
// rounding.
func solved(a [terms]vector, b vector, set, n int) (w vector, ok bool) {
	const rounding = 1e-12
	var in [terms]int
	k := 0
	for i := range n {
		if set>>i&1 == 1 {
			in[k] = i
			k++
		}
	}
	was := a
	for p := range k { // elimination; a is positive definite, so no pivot is 0
		at := in[p]
		if a[at][at] <= rounding*was[at][at] {
			return w, false
		}
		for r := p + 1; r < k; r++ {
			part := a[in[r]][at] / a[at][at]
			for c := p; c < k; c++ {
				a[in[r]][in[c]] -= part * a[at][in[c]]
			}
			b[in[r]] -= part * b[at]
		}
	}
	for p := k - 1; p >= 0; p-- {
		at := in[p]
		sum := b[at]
		for c := p + 1; c < k; c++ {
			sum -= a[at][in[c]] * w[in[c]]
		}
		if w[at] = sum / a[at][at]; w[at] < 0 {
			return w, false
		}
	}
	return w, true
}
