use super::super::tests::{balanced, rounds, small};
use super::*;
use crate::report::{compare_page, plots};

/// Five targets, 21 workloads.
fn many() -> Results {
    let mut results = small();
    let (load, target) = (results.workloads[0].clone(), results.targets[1].clone());
    let (ceiling, verdict) = (results.ceilings[0].clone(), results.verdicts[0].clone());
    let runs = std::mem::take(&mut results.runs);
    (results.targets, results.workloads) = (Vec::new(), Vec::new());
    (results.ceilings, results.verdicts) = (Vec::new(), Vec::new());
    for number in 0..5 {
        results.targets.push(Target { name: format!("server-{number}"), ..target.clone() });
    }
    for depth in 1..=21 {
        let mut load = load.clone();
        load.depth = depth;
        load.name = load.words();
        for target in &results.targets {
            let mut run = runs[0].clone();
            (run.target, run.workload) = (target.name.clone(), load.name.clone());
            results.runs.push(run);
            let (target, workload) = (target.name.clone(), load.name.clone());
            results.verdicts.push(crate::model::Verdict { target, workload, ..verdict.clone() });
        }
        let mut own = ceiling.clone();
        (own.target, own.workload) = (None, Some(load.name.clone()));
        results.ceilings.push(own);
        results.workloads.push(load);
    }
    results.summarise();
    results
}

#[test]
fn how_fast_and_what_binds_come_first() {
    let page = page(&small());
    let at = |words: &str| page.find(words).unwrap_or_else(|| panic!("{words} is not there"));
    let order =
        ["At a glance", "Bottlenecks", "How fast", "Each workload", "What each layer can carry"];
    let places = order.map(|title| at(&format!("<h2>{title}</h2>")));
    assert!(places.is_sorted(), "{places:?}");
    for headline in ["<b>9,050</b> IOPS", "bound by the drive at 85\u{a0}%"] {
        assert!(at(headline) < places[1], "{headline}");
    }
    let both = compare_page(&rounds(1.0), &rounds(2.0), ("old", "new"));
    let different = both.find("<h2>What is different</h2>").expect("it is there");
    assert!(different < both.find("<h2>At a glance</h2>").expect("it is there"));
    // Two targets with one workload: twice the throughput, the same latency and processor time.
    assert!(both.contains("2 better, 0 worse, "), "{both:.3000}");
    assert!(both.contains("<b class=\"better\">better</b>: 2.00 times"));
    // Long names take no figure away, on a phone neither.
    let (old, new) = ("a file of last week, before", "the same today, afterwards");
    let long = compare_page(&rounds(1.0), &rounds(2.0), (old, new));
    let figures = long.split("</text>").filter(|text| text.contains(">2.00 times (")).count();
    assert_eq!(figures, 4, "two targets, two widths");
}

#[test]
fn all_is_named() {
    for results in [small(), many(), rounds(1.0)] {
        let page = page(&results);
        balanced(&page);
        let (_, body) = page.split_once("<body>").expect("it has a body");
        for name in results.targets.iter().map(|target| &target.name) {
            assert!(body.contains(&escape(name)), "{name}");
        }
        for name in results.workloads.iter().map(|load| &load.name) {
            assert!(body.contains(&escape(name)), "{name}");
        }
        for ceiling in &results.ceilings {
            assert!(body.contains(&escape(&ceiling.name)), "{}", ceiling.name);
        }
        assert!(!page.contains("NaN") && !page.contains(">inf"), "every figure is a number");
    }
}

/// A phone shows tables as lists, whose words are in the style.
#[test]
fn lists_have_the_heads_of_their_tables() {
    let page = page(&small());
    for class in ["figures", "layers"] {
        let (_, table) =
            page.split_once(&format!("<table class=\"{class}\">")).expect("it is there");
        let (heads, _) = table.split_once("</tr>").expect("it has heads");
        for (at, head) in heads.split("<th").skip(3).enumerate() {
            let (_, rest) = head.split_once('>').expect("a head");
            let (words, _) = rest.split_once('<').expect("it ends");
            let words = words.replace('\u{a0}', " ");
            let rule =
                format!(".{class} td:nth-child({})::before {{ content: \"{words}\"; }}", at + 2);
            assert!(STYLE.contains(&rule), "{rule}");
        }
    }
}

/// A page of many is folded, and no heavier than a photograph.
#[test]
fn many_workloads_are_folded() {
    let page = page(&many());
    assert!(page.contains("<summary>All 21 workloads</summary>"));
    assert!(page.contains("<summary>Each workload</summary>"), "verdicts");
    assert!(!page.contains("<details open>"), "all is folded");
    assert!(page.len() < 2 << 20, "{} bytes", page.len());
}

/// A ceiling is a line with its name if it is near, and a name in the caption if it is far. Names never lie on each other.
#[test]
fn ceilings_are_lines_with_names() {
    let mut results = small();
    results.ceilings.truncate(1);
    let summary = results.summary("local", &results.workloads[0].name).expect("it was measured");
    let rate = summary.iops.median;
    let place = |name: &str, factor: f64| crate::model::Ceiling {
        name: name.to_owned(),
        value: rate * factor,
        unit: crate::model::Unit::Iops,
        target: None,
        workload: None,
        ..results.ceilings[0].clone()
    };
    results.ceilings =
        vec![place("one drive", 1.2), place("another drive", 1.21), place("the far network", 50.0)];
    let figure = bars(&results, &results.workloads[0]).expect("it was measured");
    assert!(figure.caption.contains("the far network 452k"), "{}", figure.caption);
    for drawing in [&figure.wide, &figure.narrow] {
        let height = |name: &str| {
            let (before, _) = drawing.split_once(&format!(">{name} ")).expect("it is named");
            let (_, place) = before.rsplit_once(" y=\"").expect("it has a place");
            place.split('"').next().expect("a number").to_owned()
        };
        assert_ne!(height("one drive"), height("another drive"));
        // Each goes through the bars of both targets.
        assert_eq!(drawing.matches("class=\"ceiling\"").count(), 4);
        assert!(!drawing.contains("far network"));
        assert!(drawing.contains("<desc>ceiling of one drive: 10.9k IOPS"), "{drawing}");
    }
}

/// Who sees no colours tells the series by the form of their marks and their dashes.
#[test]
fn series_differ_without_colours() {
    let mut forms: Vec<String> =
        (0..8).map(|series| plots::key(series).replace(&format!(" s{series}"), "")).collect();
    forms.sort();
    forms.dedup();
    assert_eq!(forms.len(), 8);
    for dashes in 1..8 {
        assert!(STYLE.contains(&format!(".d{dashes}.curve {{ stroke-dasharray")), "{dashes}");
    }
}

/// The colours of one scheme, by their names.
fn colours(scheme: &str) -> Vec<(&str, [f64; 3])> {
    let colour = |part: &'static str| {
        let (name, value) = part.trim().strip_prefix("--")?.split_once(": #")?;
        let channel = |at: usize| {
            let value = u8::from_str_radix(value.get(at..at + 2)?, 16).ok()?;
            Some(f64::from(value) / 255.0)
        };
        Some((name, [channel(0)?, channel(2)?, channel(4)?]))
    };
    let (_, rest) = STYLE.split_once(scheme).expect("the scheme is there");
    let (_, rest) = rest.split_once(":root {").expect("it has colours");
    let (block, _) = rest.split_once('}').expect("it ends");
    block.split(';').filter_map(colour).collect()
}

/// WCAG 2.1, contrast ratio.
fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
    let luminance = |colour: [f64; 3]| {
        let linear =
            colour.map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) });
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05
    };
    let (a, b) = (luminance(a), luminance(b));
    a.max(b) / a.min(b)
}

#[test]
fn both_schemes_can_be_read() {
    assert!(page(&small()).contains("<meta name=\"color-scheme\" content=\"light dark\">"));
    let schemes = ["", "(prefers-color-scheme: dark)"].map(colours);
    let names = |at: usize| schemes[at].iter().map(|(name, _)| *name).collect::<Vec<_>>();
    assert_eq!(names(0), names(1), "each colour has a value in each scheme");
    for (scheme, colours) in ["light", "dark"].iter().zip(&schemes) {
        let of = |name: &str| {
            let found = colours.iter().find(|(own, _)| *own == name);
            found.unwrap_or_else(|| panic!("{name} is no colour")).1
        };
        for text in ["ink", "soft", "accent", "better", "worse", "noise"] {
            for ground in ["page", "card", "well"] {
                let told = contrast(of(text), of(ground));
                assert!(told >= 4.5, "{scheme}: {text} on {ground}: {told:.2}");
            }
        }
        assert!(contrast(of("ink"), of("warn")) >= 4.5, "{scheme}: warnings");
        for series in ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"] {
            let told = contrast(of(series), of("card"));
            assert!(told >= 3.0, "{scheme}: {series}: {told:.2}");
        }
    }
}

/// The number of an attribute.
fn attribute(element: &str, name: &str) -> f64 {
    let start = format!(" {name}=\"");
    let (_, rest) = element.split_once(&start).unwrap_or_else(|| panic!("{name} of {element}"));
    rest.split('"').next().and_then(|number| number.parse().ok()).expect("a number")
}

/// Words that stand on an error bar, in one figure: a letter is at most 7.2 wide and 12 high.
fn words_on_error_bars(svg: &str) -> Vec<String> {
    let elements = || svg.split('<').map(|element| format!(" {element}"));
    let text = |element: String| {
        let (head, words) = element.split_once('>')?;
        let wide = words.chars().count() as f64 * 7.2;
        let (x, y) = (attribute(head, "x"), attribute(head, "y"));
        let class = head.split("class=\"").nth(1)?.split('"').next()?.to_owned();
        let is = |name: &str| class.split(' ').any(|have| have == name);
        let left = if is("e") {
            x - wide
        } else if is("m") {
            x - wide / 2.0
        } else {
            x
        };
        Some((left, y - 9.0, left + wide, y + 3.0, words.to_owned()))
    };
    let texts: Vec<_> =
        elements().filter(|one| one.starts_with(" text ")).filter_map(text).collect();
    let bars = elements().filter(|one| {
        one.starts_with(" line ") && (one.contains("whisker") || one.contains("interval"))
    });
    bars.flat_map(|bar| {
        let [x1, x2, y1, y2] = ["x1", "x2", "y1", "y2"].map(|name| attribute(&bar, name));
        let (x, y) = ((x1.min(x2), x1.max(x2)), (y1.min(y2), y1.max(y2)));
        let on = move |text: &&(f64, f64, f64, f64, String)| {
            x.0 <= text.2 && x.1 >= text.0 && y.0 <= text.3 && y.1 >= text.1
        };
        texts.iter().filter(on).map(|text| text.4.clone()).collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn no_label_stands_on_an_error_bar() {
    let mut seen = 0;
    let both = compare_page(&rounds(1.0), &rounds(2.0), ("a file of last week", "the same today"));
    for page in [page(&small()), page(&many()), page(&rounds(1.0)), both] {
        for svg in page.split("<svg").skip(1).filter_map(|rest| rest.split("</svg>").next()) {
            seen += svg.matches("whisker").count() + svg.matches("interval").count();
            assert_eq!(words_on_error_bars(svg), [] as [String; 0], "{svg}");
        }
    }
    assert!(seen > 0, "there are error bars");
    let on = "<line x1=\"0\" y1=\"5\" x2=\"9\" y2=\"5\" class=\"whisker\"/><text x=\"3\" y=\"8\" class=\"t\">on it</text>";
    assert_eq!(words_on_error_bars(on), ["on it"], "this test can fail");
}

#[test]
fn one_cause_is_one_finding() {
    let results = many();
    let page = page(&results);
    let (_, rest) = page.split_once("<h2>Bottlenecks</h2>").expect("it is there");
    let (section, _) = rest.split_once("</section>").expect("it ends");
    // 21 workloads of each of five targets, all bound by the drive.
    assert_eq!(section.matches("<article").count(), 5);
    assert_eq!(section.matches("Bound by the drive in 21 workloads").count(), 5);
    for load in &results.workloads {
        assert!(section.contains(&escape(&load.name)), "{}", load.name);
    }
}
