//! The trace of the graph: complete or said not to be, and true.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forge_core::{Backend, Context, ContextParams, Model, ModelParams};
use ramforge_tests::programs::ramforge_with_report;
use ramforge_tests::real;
use serde_json::Value;

fn run(more: &[&str]) -> Value {
    let model = real::smollm2().unwrap();
    let arguments = ["run", model.to_str().unwrap(), "--prompt", "The capital of France is", "--no-repack"];
    let options = ["--threads", "1"];
    let (output, report) = ramforge_with_report(&[&arguments[..], &options, more].concat()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    report
}

/// The name of the last node that reads each weight, by the graph itself.
fn last_uses(model: PathBuf) -> BTreeMap<String, String> {
    let params = ModelParams { extra_buffers: false, ..ModelParams::default() };
    let model = Model::load(Backend::init(), &[model], params, None).unwrap();
    let mut context =
        Context::new(&model, &ContextParams { context_tokens: 256, ..ContextParams::default() }).unwrap();
    let mut last = BTreeMap::new();
    for node in context.planned_nodes(1).unwrap().iter().filter(|node| !node.computes_nothing) {
        for &address in &node.reads {
            last.insert(address, node.name.to_string_lossy().into_owned());
        }
    }
    let tensors = model.tensors().unwrap();
    tensors
        .into_iter()
        .filter_map(|tensor| Some((tensor.name, last.get(&tensor.address?)?.clone())))
        .collect()
}

#[test]
fn a_complete_trace_gives_the_last_use_of_every_weight() {
    let report = run(&["-n", "8", "--graph-trace", "--graph-trace-events", "20000"]);
    let trace = &report["graph_trace"];
    assert_eq!((&trace["complete"], &trace["dropped_events"]), (&true.into(), &0.into()), "{trace:#}");
    // The prompt, and a token each for seven of the eight: the last one is not decoded.
    assert_eq!(trace["executions"], 8);
    let graphs = trace["graphs"].as_array().unwrap();
    assert_eq!((&graphs[0]["phase"], &graphs[0]["tokens"]), (&"prompt".into(), &5.into()));
    assert!(graphs[1..].iter().all(|graph| graph["phase"] == "decode" && graph["complete"] == true));
    let nodes: u64 = graphs.iter().map(|graph| graph["nodes"].as_u64().unwrap()).sum();
    assert_eq!(trace["events"], nodes);
    assert!(trace["nodes"].as_array().unwrap().is_empty(), "nodes are for --graph-trace-detail");

    let expected = last_uses(real::smollm2().unwrap());
    let found: BTreeMap<String, String> = trace["last_uses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|last| (last["weight"].as_str().unwrap().to_owned(), last["node"].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(found.len(), 272, "every tensor of the model");
    assert_eq!(found, expected);
}

#[test]
fn a_trace_without_room_for_a_graph_is_no_evidence() {
    let report = run(&[
        "-n",
        "4",
        "--graph-trace",
        "--graph-trace-events",
        "100",
        "--residency-policy",
        "reuse-aware",
        "--residency-target",
        "80M",
    ]);
    let trace = &report["graph_trace"];
    assert_eq!(trace["complete"], false);
    assert_eq!(trace["events"], 100);
    assert!(trace["dropped_events"].as_u64().unwrap() > 1000, "{trace:#}");
    assert!(trace["last_uses"].as_array().unwrap().is_empty());
    assert!(trace["reason"].as_str().unwrap().contains("room for 100 of the graph's"), "{trace:#}");
    for operation in report["operations"].as_array().unwrap() {
        assert_eq!(operation["profile_used"], false);
        assert!(operation["reason"].as_str().unwrap().contains("incomplete"), "{operation:#}");
    }
}

#[test]
fn the_detail_has_every_node_with_its_time_and_sources() {
    let report = run(&["-n", "3", "--graph-trace", "--graph-trace-detail", "--graph-trace-events", "20000"]);
    let trace = &report["graph_trace"];
    let nodes = trace["nodes"].as_array().unwrap();
    assert_eq!(trace["events"], nodes.len() as u64);
    assert!(nodes.iter().all(|node| node["elapsed_ms"].as_f64().is_some()), "{trace:#}");
    let up = nodes.iter().find(|node| node["execution"] == 1 && node["name"] == "ffn_up-3").unwrap();
    assert_eq!(up["operation"], "MUL_MAT");
    let sources = up["sources"].as_array().unwrap();
    assert!(sources.iter().any(|source| source == "blk.3.ffn_up.weight"), "{up:#}");
    assert_eq!(up["bytes"], 1536 * 4);
    // Nodes are timed one after the other, so together they take no longer than the execution.
    for graph in trace["graphs"].as_array().unwrap() {
        let own = nodes.iter().filter(|node| node["execution"] == graph["number"]);
        let sum: f64 = own.map(|node| node["elapsed_ms"].as_f64().unwrap()).sum();
        assert!(sum > 0.0 && sum <= graph["elapsed_ms"].as_f64().unwrap(), "{sum} in {graph:#}");
    }
}

#[test]
fn tracing_is_at_most_twice_as_slow_and_changes_no_token() {
    let off = |_: ()| run(&["-n", "24"]);
    let on = |_: ()| run(&["-n", "24", "--graph-trace"]);
    let detailed = |_: ()| run(&["-n", "24", "--graph-trace", "--graph-trace-detail"]);
    let rate = |report: &Value| report["timing"]["decode_tokens_per_second"].as_f64().unwrap();
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..5 {
        let plain = off(());
        assert!(plain["graph_trace"].is_null());
        for (ratios, traced) in ratios.iter_mut().zip([on(()), detailed(())]) {
            assert_eq!(traced["output"], plain["output"]);
            ratios.push(rate(&plain) / rate(&traced));
        }
    }
    for (name, mut ratios) in ["trace", "detail"].into_iter().zip(ratios) {
        ratios.sort_by(f64::total_cmp);
        println!("{name}: {:.2} times as slow, of {ratios:.2?}", ratios[2]);
        assert!(ratios[2] <= 2.0, "{name}: {ratios:?}");
    }
}
